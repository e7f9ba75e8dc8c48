# Ranks in PID namespaces of their own, as in containers that share a network: each is process 1 of its namespace, so
# PIDs say nothing about who is who. Usage: containers_test.py BIN [unittest's arguments]. Run by ctest.
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "hosts"))
import lab  # noqa: E402
from lab_result import exit_code  # noqa: E402

CONTAINER = ["unshare", "-p", "-f", "-m", "--mount-proc", "--kill-child"]
PULL = {"OURO_SELECT": "all_reduce@private:pull,all_gather@private:pull,broadcast@private:pull"}


class Job(lab.Job):
    """Ranks of one host, each in a container but those of `outside`."""

    def __init__(self, ranks, arguments, env=None, of_rank=None, outside=()):
        super().__init__((ranks,), arguments, {"OURO_DEADLINE": "60", **(env or {})}, of_rank)
        self.outside = outside

    def variables(self, rank):
        return {k: v for k, v in super().variables(rank).items() if k != "OURO_RENDEZVOUS"}

    def start(self):
        for rank in range(self.size):
            container = [] if rank in self.outside else CONTAINER
            self.ranks.append(self.kind(rank, 0, [*container, self.program, *self.arguments],
                                        {**lab.CLEAN, **self.variables(rank)}))
        return self


class Containers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True)
        if done.returncode != 0:
            raise unittest.SkipTest("this system allows no PID namespaces: " + done.stderr.strip())

    def all_check(self, ranks, env, outside=()):
        with Job(ranks, ["check"], env, outside=outside).start() as job:
            codes = job.end(100)
            self.assertEqual(set(codes.values()), {0}, job.story())
            for r in job.ranks:
                if r.rank not in outside:
                    self.assertEqual(r.first("joined")["pid"], 1)

    def test_collectives_and_messages(self):
        for ranks in 2, 3:
            self.all_check(ranks, {})

    def test_private_memory_is_offered(self):
        self.all_check(2, PULL)
        self.all_check(3, PULL, outside=(1,))

    def test_devices(self):
        """An address in a device's memory means nothing in another process, whatever its PID."""
        self.all_check(2, {"OURO_FAKE_GPUS": "2"})
        for path, gpus in ("auto", "1"), ("leader", "1"), ("resident", "2"), ("stream", "2"):
            done = subprocess.run([lab.OURO_RUN, "-n", "2", "--timeout", "60", *CONTAINER, str(lab.BIN / "example-gpu-allreduce")],
                                  env={**lab.CLEAN, "OURO_FAKE_GPUS": gpus, "OURO_GPU_PATH": path}, capture_output=True, text=True,
                                  timeout=90)
            self.assertIn("100000 elements on the GPU, each 3", done.stdout, f"{path}: {done.stdout}{done.stderr}")

    def survives(self, job, dead):
        """Rank `dead` dies in the middle of a loop. The others learn of it long before their deadline, and go on."""
        with job.start():
            self.assertTrue(job.all_say("shrunk", job.but(dead), 50), job.story())
            job.stop()
            codes = job.end(30)
            for r in job.but(dead):
                failed = r.first("failed")
                self.assertEqual((failed["reason"], failed["rank"]), ("peer-dead", dead), job.story())
                self.assertEqual(r.first("shrunk")["dead"], [dead])
                self.assertEqual(codes[r.rank], 0, job.story())

    def test_a_death_is_noticed(self):
        for dead in 1, 0:
            fault = {"OURO_FAULT": f"kill:rank={dead},op=20"}
            self.survives(Job(3, ["loop", "1000", "1000000", "STOP"], fault), dead)

    def test_a_death_of_one_outside_is_noticed(self):
        self.survives(Job(3, ["loop", "1000", "1000000", "STOP"], {"OURO_FAULT": "kill:rank=2,op=20"}, outside=(2,)), 2)

    def test_under_the_launcher(self):
        done = subprocess.run([lab.OURO_RUN, "-n", "2", "--timeout", "60", *CONTAINER, lab.RANK, "check"],
                              env={**lab.CLEAN, **PULL}, capture_output=True, text=True, timeout=90)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count('"event":"checked"'), 2, done.stdout)


if __name__ == "__main__":
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Containers)
    sys.exit(exit_code(unittest.TextTestRunner(verbosity=2).run(tests)))
