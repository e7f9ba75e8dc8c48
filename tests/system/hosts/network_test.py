# Collectives over bad networks: loss, delay, reordering, duplicates, damage that passes TCP's checksum, a one-way
# black hole. Results must be right, or an error must say what happened. Usage: network_test.py BIN CASE. Needs root
# and tapnet.
import json
import subprocess
import unittest

import lab


class Network(unittest.TestCase):
    hosts = 2
    rounds, count = 60, 30_000

    def set(self, *faults):
        for fault in faults:
            subprocess.run([lab.NETLAB, "ctl", lab.NAME, "set " + fault], check=True, capture_output=True, timeout=20)

    def stats(self):
        return subprocess.run([lab.NETLAB, "ctl", lab.NAME, "stats"], check=True, capture_output=True, text=True,
                              timeout=20).stdout

    def rounds_are_right(self, shape=(2, 2), rounds=None, env=None):
        rounds = rounds or self.rounds
        with lab.Job(shape, ["loop", self.count, rounds], env=env) as job:
            self.assertEqual(set(job.start().end(40).values()), {0}, job.story())
            for r in job.ranks:
                self.assertEqual(r.all("failed"), [], job.story())
                self.assertEqual(r.first("stopped")["rounds"], rounds + 1)
            return max(r.first("stopped")["longest"] for r in job.ranks)


class Loss(Network):
    network = ["--emulate", "seed=11", "loss=0.01"]

    def test_of_one_in_a_hundred(self):
        print(f"longest round: {self.rounds_are_right():.2f} s")


class Delay(Network):
    network = ["--emulate", "seed=12", "delay=50"]
    rounds = 8

    def test_of_fifty_milliseconds(self):
        longest = self.rounds_are_right()
        self.assertGreater(longest, 0.05)  # the delay was active
        print(f"longest round: {longest:.2f} s")


class Reorder(Network):
    network = ["--emulate", "seed=13", "delay=2", "jitter=2", "reorder=0.25", "dup=0.01"]

    def test_and_duplicates(self):
        print(f"longest round: {self.rounds_are_right():.2f} s")


class Damage(Network):
    network = ["--emulate", "seed=14"]

    def flip(self, count, corrupt, seconds):
        """Runs rounds over a network that flips bits and fixes TCP's checksum. Returns the job, its exit codes, the number of flips."""
        job = lab.Job((1, 2), ["loop", count, 10**9, "STOP"], env={"OURO_SILENT_FAIL": "3"})
        self.enterContext(job).start()
        self.assertTrue(job.all_say("round"), job.story())
        self.set(f"* * corrupt={corrupt}", "* * fixup=1")
        lab.until(lambda: any(r.process.poll() is not None for r in job.ranks), seconds)
        self.set("* * corrupt=0")
        job.stop()
        codes = set(job.end(25).values())
        return job, codes, sum(json.loads(line)["corrupted"] for line in self.stats().splitlines() if line[0] == "{")

    def test_of_one_packet_in_a_hundred_is_never_silent(self):
        job, codes, flipped = self.flip(self.count, 0.01, 6)
        reasons = [e["reason"] for r in job.ranks for e in r.all("failed")]
        self.assertGreater(flipped, 5)
        self.assertLessEqual(codes, {0, 3, 4}, job.story())
        allowed = {"data-corrupt", "peer-unresponsive", "peer-dead", "fenced", "no-quorum"}
        self.assertLessEqual(set(reasons), allowed, job.story())
        self.assertNotIn("nobody said so", job.story())
        print(flipped, "flips; the ranks said", reasons)

    def test_of_some_packets_is_repaired(self):
        job, codes, flipped = self.flip(1000, 0.001, 5)
        self.assertGreater(flipped, 3)
        self.assertEqual([e for r in job.ranks for e in r.all("failed")], [], job.story())
        self.assertEqual(codes, {0}, job.story())
        print(flipped, "flips in", job[0].first("stopped")["rounds"], "rounds, of which nobody noticed anything")


class OneWay(Network):
    network = ["--emulate", "seed=15"]

    def test_black_hole_is_found_on_both_sides(self):
        with lab.Job((1, 2), ["loop", self.count, 10**9, "STOP"], env={"OURO_SILENT_FAIL": "1.5"}) as job:
            job.start()
            self.assertTrue(job.all_say("round"), job.story())
            self.set("0 1 cut=1")
            self.assertTrue(job.all_say("failed", seconds=12), job.story())
            for r in job.ranks:
                self.assertIn(r.first("failed")["reason"], {"peer-unresponsive", "peer-dead"}, job.story())
                print(r.rank, r.first("failed")["message"])


class Recover(Network):
    network = ["--emulate", "seed=16", "delay=1"]

    def test_half_a_second_of_nothing_is_nothing(self):
        with lab.Job((1, 2), ["loop", self.count, 10**9, "STOP"]) as job:
            job.start()
            self.assertTrue(job.all_say("round"), job.story())
            for way in ("0 1", "1 0", "* *"):
                self.set(f"{way} cut=1")
                lab.until(lambda: False, 0.5)
                self.set(f"{way} cut=0")
                lab.until(lambda: False, 0.5)
            job.stop()
            self.assertEqual(set(job.end(20).values()), {0}, job.story())
            self.assertEqual([e for r in job.ranks for e in r.all("failed")], [])


CASES = {case.__name__: case for case in (Loss, Delay, Reorder, Damage, OneWay, Recover)}

if __name__ == "__main__":
    lab.main(CASES)
