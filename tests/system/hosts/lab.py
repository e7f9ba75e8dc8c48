# Jobs over the hosts of a lab: starts ranks in network namespaces, reads their output, and ends them. Used by the
# tests of this folder, which run inside `netlab run`.
import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from lab_result import exit_code

BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bin").resolve()
RANK, OURO_RUN, NETLAB = (str(BIN / name) for name in ("hosts_rank", "ouro-run", "netlab"))
NAME = os.environ.get("NETLAB_NAME", "")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("OURO_")}
PORT = 7700


def host(i):
    return f"{NAME}-{i}"


def address(i):
    return f"10.77.0.{i + 1}"


def inside(i, *command):
    """The command line that runs the command on host i, or on this machine if there is no lab."""
    return ["ip", "netns", "exec", host(i), *command] if NAME else [*command]


def on(i, *command):
    """Runs a command on host i, which must succeed. Returns its output."""
    return subprocess.run(inside(i, *command), check=True, capture_output=True, text=True).stdout


def cable(i, state):
    """Pulls or plugs the cable of host i: its end in the switch goes down or up, the host sees no carrier."""
    subprocess.run(["ip", "-n", f"{NAME}-net", "link", "set", f"port{i}", state], check=True)


def until(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return what()
        time.sleep(0.01)
    return True


class Rank:
    """A process of a job; collects its events (JSON on standard output) and its log (standard error) as they arrive."""

    def __init__(self, rank, where, command, env):
        self.rank, self.host, self.events, self.log = rank, where, [], []
        if "FAULTS_CLOCK" in env:  # each host's monotonic clock is this many seconds ahead of the previous host's
            command = ["unshare", "-T", "--monotonic", str(int(env["FAULTS_CLOCK"]) * (where + 1)), *command]
        self.process = subprocess.Popen(inside(where, *command), env=env, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pid = self.process.pid  # `ip` executes the command in its own process
        self.readers = [threading.Thread(target=self.read_events), threading.Thread(target=self.read_log)]
        for reader in self.readers:
            reader.start()

    def read_events(self):
        for line in self.process.stdout:
            try:
                self.hear(json.loads(line))
            except ValueError:
                self.log.append((time.monotonic(), "not JSON: " + line))

    def hear(self, event):
        self.events.append(event)

    def read_log(self):
        for line in self.process.stderr:
            self.log.append((time.monotonic(), line.rstrip()))

    def all(self, name):
        return [e for e in list(self.events) if e["event"] == name]

    def first(self, name):
        return next(iter(self.all(name)), None)

    def logged(self, pattern):
        return next(((t, line) for t, line in list(self.log) if re.search(pattern, line)), None)

    def end(self, seconds):
        """Waits for the end. Returns the exit code, negative for a signal; None: it had to be killed."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        for reader in self.readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def story(self):
        lines = [f"--- rank {self.rank} on host {self.host}, exit {self.process.returncode}"]
        lines += [json.dumps(e) for e in self.events] + [f"{t:.3f} {line}" for t, line in self.log]
        return "\n".join(lines)


class Job:
    """Ranks that are started one by one, so that a fault of one does not make a launcher end the rest. `shape`: number of ranks
    on each host. The ranks get the environment variables that a user's own launcher would set."""
    kind = Rank

    def __init__(self, shape, arguments, env=None, of_rank=None, launcher="ouro", program=RANK):
        self.shape, self.size = shape, sum(shape)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ouro-hosts-"))
        self.stop_file = self.folder / "stop"
        self.secret = self.folder / "secret"
        self.write_secret(self.secret)
        self.name = secrets.token_hex(8)
        self.program, self.arguments = program, [str(self.stop_file) if a == "STOP" else str(a) for a in arguments]
        self.env, self.of_rank, self.launcher, self.ranks = env or {}, of_rank or {}, launcher, []

    @staticmethod
    def write_secret(path):
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))

    def place(self, rank):
        """(host, local rank)"""
        for h, many in enumerate(self.shape):
            if rank < many:
                return h, rank
            rank -= many
        raise ValueError(rank)

    def variables(self, rank):
        h, local = self.place(rank)
        torchrun = {"RANK": rank, "WORLD_SIZE": self.size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": self.shape[h],
                    "GROUP_RANK": h, "MASTER_ADDR": address(0), "MASTER_PORT": PORT - 1,
                    "TORCHELASTIC_RUN_ID": self.name}
        ouro = {"OURO_RANK": rank, "OURO_WORLD_SIZE": self.size, "OURO_LOCAL_RANK": local,
                "OURO_LOCAL_SIZE": self.shape[h], "OURO_JOB_ID": self.name, "OURO_RENDEZVOUS": f"{address(0)}:{PORT}"}
        own = {"ouro": ouro, "torchrun": torchrun}[self.launcher]
        defaults = {"OURO_SECRET_FILE": self.secret, "OURO_JOIN_DEADLINE": 30, "OURO_DEADLINE": 30}
        return {k: str(v) for k, v in {**defaults, **own, **self.env, **self.of_rank.get(rank, {})}.items()}

    def start(self, ranks=None):
        for rank in range(self.size) if ranks is None else ranks:
            self.ranks.append(self.kind(rank, self.place(rank)[0], [self.program, *self.arguments],
                                        {**CLEAN, **self.variables(rank)}))
        return self

    def __getitem__(self, rank):
        return next(r for r in self.ranks if r.rank == rank)

    def on_host(self, h):
        return [r for r in self.ranks if r.host == h]

    def but(self, *lost):
        return [r for r in self.ranks if r.rank not in lost]

    def all_say(self, event, ranks=None, seconds=30.0):
        """Waits until each of the ranks has reported the event or has ended. Returns whether all have reported it."""
        some = self.ranks if ranks is None else ranks
        until(lambda: all(r.first(event) or r.process.poll() is not None for r in some), seconds)
        return until(lambda: all(r.first(event) for r in some), 0.2)

    def stop(self):
        self.stop_file.touch()

    def end(self, seconds=15.0):
        """Waits for the end of all ranks. Returns exit codes by rank."""
        limit = time.monotonic() + seconds
        return {r.rank: r.end(max(0.0, limit - time.monotonic())) for r in self.ranks}

    def story(self):
        return "\n".join(r.story() for r in self.ranks)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for r in self.ranks:
            if r.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    r.process.kill()
        self.end(5)
        if kind is not None:
            print(self.story(), file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)


def ouro_run(shape, *command, env=None, hosts=True, seconds=60):
    """Runs a job with ouro-run, over the lab's hosts or on this machine. Returns (exit code, events by rank, all output)."""
    names = ",".join(f"{host(i)}:{n}" for i, n in enumerate(shape))
    where = ["-H", names, "--launch-agent", os.environ["NETLAB_AGENT"]]
    whole = [OURO_RUN, *(where if hosts else []), "--timeout", str(seconds), "-n", str(sum(shape)), *map(str, command)]
    done = subprocess.run(whole, env={**CLEAN, "OURO_DEADLINE": "20", **(env or {})}, capture_output=True, text=True,
                          timeout=seconds + 10)
    events = {}
    for line in done.stdout.splitlines():
        tag = re.match(r"\[(\d+)\] (\{.*)", line)
        if tag:
            events.setdefault(int(tag[1]), []).append(json.loads(tag[2]))
    return done.returncode, events, done.stdout + done.stderr


def main(cases):
    """Runs the case that the command line names (PROGRAM BIN CASE) in its own lab. Exit code 77: it cannot run here."""
    case = cases[sys.argv[2]]
    if not NAME:
        network = getattr(case, "network", [])
        os.execv(NETLAB, [NETLAB, "run", f"h{os.getpid()}", str(case.hosts), *network, "--", sys.executable, *sys.argv])
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    sys.exit(exit_code(unittest.TextTestRunner(verbosity=2).run(tests)))
