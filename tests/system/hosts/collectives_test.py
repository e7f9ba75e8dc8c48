# Collectives over two, three and four hosts with uneven numbers of ranks, started by ouro-run, with
# torchrun's variables and by mpirun. Usage: collectives_test.py BIN CASE. Needs root; skipped if network
# namespaces are unavailable.
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import lab

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "api/nccl"))
import torch_place  # noqa: E402

# Ways to carry the data, and the message of a build that lacks one.
WAYS = {"tcp": {}, "ucx": {"OURO_FABRIC": "ucx"}, "tls": {"OURO_SECURITY": "tls"},
        "four": {"OURO_TCP_CONNECTIONS": "4"}}
CANNOT = {"ucx": "OURO_FABRIC=ucx: this build has no UCX"}


def hashes(events):
    """The hash of its canonical reductions that each rank reports."""
    return {rank: e["hash"] for rank, all_of_it in events.items() for e in all_of_it if e["event"] == "checked"}


class Shape(unittest.TestCase):
    """Checks all collectives over one placement of ranks, and compares the canonical bits with those of one host."""
    shape, way = None, "tcp"

    def test_exact_and_the_bits_of_one_host(self):
        code, events, text = lab.ouro_run(self.shape, lab.RANK, "check", env=WAYS[self.way])
        if self.way in CANNOT and CANNOT[self.way] in text:
            self.skipTest("no UCX in this build")
        self.assertEqual(code, 0, text)
        n = sum(self.shape)
        found = hashes(events)
        self.assertEqual(len(found), n, text)
        for rank in range(n):
            joined = next(e for e in events[rank] if e["event"] == "joined")
            self.assertEqual(joined["size"], n)
            self.assertLess(joined["local_size"], n)  # the ranks are not all on one host
            self.assertLess(events[rank][-1]["closing"], 5, text)  # a leaving rank waits only for receivers of its data
        code, alone, text = lab.ouro_run(self.shape, lab.RANK, "check", hosts=False)
        self.assertEqual(code, 0, text)
        self.assertEqual(found, hashes(alone))
        print("calls:", next(e["calls"] for e in events[0] if e["event"] == "checked"), "hash of rank 0:", found[0])


def shape_case(*shape, way):
    return type("Shape", (Shape,), {"shape": shape, "way": way, "hosts": len(shape)})


class Torchrun(unittest.TestCase):
    hosts = 2

    def test_its_variables_lead_to_the_meeting(self):
        with lab.Job((2, 1), ["join"], launcher="torchrun") as job:
            self.assertEqual(job.start().end(), {0: 0, 1: 0, 2: 0}, job.story())
            for r in job.ranks:
                self.assertEqual(r.first("joined")["local_size"], (2, 2, 1)[r.rank])
                self.assertEqual(r.first("left")["sum"], 3)


class TorchrunItself(unittest.TestCase):
    hosts = 2

    def test_itself(self):
        own = torch_place.place() / "bin/torchrun"
        torchrun = str(own) if own.exists() else shutil.which("torchrun")
        if not torchrun:
            self.skipTest(f"not installed: torchrun, neither here nor in {own.parent} (tools/torch-env)")
        shape = (2, 1)
        with lab.Job(shape, ["join"]) as job:  # its folder and secret; the ranks are started by torchrun
            env = {**lab.CLEAN, "OURO_SECRET_FILE": str(job.secret), "OURO_JOIN_DEADLINE": "30"}
            agents = [subprocess.Popen(
                ["ip", "netns", "exec", lab.host(h), torchrun, "--no-python", "--nnodes", "2", "--node-rank", str(h),
                 "--nproc-per-node", str(many), "--master-addr", lab.address(0), "--master-port", str(lab.PORT - 1),
                 lab.RANK, "join"], env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT) for h, many in enumerate(shape)]
            try:
                said = [a.communicate(timeout=60)[0] for a in agents]
            finally:
                for a in agents:
                    a.kill()
        for h, many in enumerate(shape):
            self.assertEqual(agents[h].returncode, 0, said[h])
            self.assertEqual(said[h].count('"event":"joined"'), many, said[h])
            self.assertEqual(said[h].count(f'"local_size":{many}'), many, said[h])
            self.assertEqual(said[h].count('"sum":3'), many, said[h])


AGENT = """#!/bin/sh
# As ssh: options, a host, a command. The host gets a name of its own, as real ones have.
while [ "${1#-}" != "$1" ]; do shift; done
at=$1; shift
exec unshare --uts sh -c 'hostname "$0"; exec ip netns exec "$0" sh -c "$1"' "$NETLAB_NAME-$((${at##*.} - 1))" "$*"
"""


class Mpi(unittest.TestCase):
    hosts = 2

    def run_mpi(self, launcher, *options):
        if not shutil.which(launcher):
            self.skipTest(f"not installed: {launcher}")
        with lab.Job((2, 1), ["join"]) as job:  # its folder and secret; the ranks are started by the launcher
            agent = job.folder / "agent"
            agent.write_text(AGENT)
            agent.chmod(0o700)
            env = {**lab.CLEAN, "OURO_RENDEZVOUS": f"{lab.address(0)}:{lab.PORT}", "OURO_SECRET_FILE": str(job.secret),
                   "OURO_JOIN_DEADLINE": "20"}
            inside = f'hostname {lab.host(0)}; exec ip netns exec {lab.host(0)} "$0" "$@"'
            command = [launcher, *(o.replace("AGENT", str(agent)) for o in options), lab.RANK, "join"]
            done = subprocess.run(["unshare", "--uts", "sh", "-c", inside, *command], env=env, capture_output=True,
                                  text=True, timeout=40, stdin=subprocess.DEVNULL)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(said.count('"event":"joined"'), 3, said)
        self.assertEqual(said.count('"local_size":2'), 2, said)
        self.assertEqual(said.count('"local_size":1'), 1, said)
        self.assertEqual(said.count('"sum":3'), 3, said)


class Mpich(Mpi):
    def test_its_mpirun(self):
        self.run_mpi("mpirun.mpich", "-launcher", "ssh", "-launcher-exec", "AGENT", "-localhost", lab.address(0),
                     "-hosts", f"{lab.address(0)}:2,{lab.address(1)}:1", "-n", "3")


class OpenMpi(Mpi):
    def test_its_mpirun(self):
        self.run_mpi("mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", "AGENT", "--mca",
                     "oob_tcp_if_include", "eth0", "-x", "OURO_RENDEZVOUS", "-x",
                     "OURO_SECRET_FILE", "-x", "OURO_JOIN_DEADLINE", "--host", f"{lab.address(0)}:2,{lab.address(1)}:1",
                     "-n", "3")


CASES = {"Torchrun": Torchrun, "TorchrunItself": TorchrunItself, "Mpich": Mpich, "OpenMpi": OpenMpi}
for way in WAYS:
    for shape in ((1, 1), (2, 1), (1, 2, 1), (3, 1, 2, 1)):
        CASES["Shape" + "_".join(map(str, shape)) + "_" + way] = shape_case(*shape, way=way)

if __name__ == "__main__":
    lab.main(CASES)
