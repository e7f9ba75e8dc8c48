# How many bytes of an all-reduce cross the link between two hosts, by the counters of their interfaces, against the
# least. No timing. Usage: bytes_test.py BIN CASE. Needs root; ctest shows it as skipped where there are no namespaces.
import json
import unittest

import lab

SIZE = 8 << 20
PER_HOST = 4
MOST = 1.05  # times the least, headers of TCP and of frames, signs of life and acknowledgements included


class Bytes(unittest.TestCase):
    hosts = 2

    def setUp(self):
        if not (lab.BIN / "bench_hosts").exists():
            self.skipTest("the benches are not built")

    def sent_a_round(self, algorithm):
        """Bytes that each host sends in an all-reduce of SIZE bytes."""
        code, events, text = lab.ouro_run((PER_HOST, PER_HOST), lab.BIN / "bench_hosts", algorithm, SIZE, 4)
        self.assertEqual(code, 0, text)
        first_ranks = {rank: lines[0] for rank, lines in events.items()}
        self.assertEqual(set(first_ranks), {0, PER_HOST}, text)
        return [line["sent"] for line in first_ranks.values()]

    def test_the_hierarchy_sends_little_more_than_the_least(self):
        # What a host has summed has to get to the other: 2 (M-1)/M of the buffer each way, for M = 2 hosts.
        for algorithm in ("hierarchy", "hierarchy_tree"):
            sent = self.sent_a_round(algorithm)
            print(algorithm, [f"{s / SIZE:.3f}" for s in sent])
            if algorithm == "hierarchy":
                for s in sent:
                    self.assertGreater(s, 0.99 * SIZE)  # the counters count
                    self.assertLess(s, MOST * SIZE)

    def test_a_flat_ring_sends_more(self):
        flat = max(self.sent_a_round("ring"))
        print("ring", f"{flat / SIZE:.3f}")
        self.assertGreater(flat, 1.5 * SIZE)  # 2 (n-1)/n, over the one link that leaves each host


CASES = {"Bytes": Bytes}

if __name__ == "__main__":
    lab.main(CASES)
