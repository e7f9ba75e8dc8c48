# Compares the bytes of an all-reduce that cross the link between two hosts, by their interface counters, with the
# minimum. No timing. Usage: bytes_test.py BIN CASE. Needs root; skipped if network namespaces are unavailable.
import json
import unittest

import lab

SIZE = 8 << 20
PER_HOST = 4
MOST = 1.05  # times the minimum, including headers of TCP and frames, signs of life and acknowledgements


class Bytes(unittest.TestCase):
    hosts = 2

    def setUp(self):
        if not (lab.BIN / "bench_hosts").exists():
            self.skipTest("no benches in this build")

    def sent_a_round(self, algorithm):
        """Bytes that each host sends in one all-reduce of SIZE bytes."""
        code, events, text = lab.ouro_run((PER_HOST, PER_HOST), lab.BIN / "bench_hosts", algorithm, SIZE, 4)
        self.assertEqual(code, 0, text)
        first_ranks = {rank: lines[0] for rank, lines in events.items()}
        self.assertEqual(set(first_ranks), {0, PER_HOST}, text)
        return [line["sent"] for line in first_ranks.values()]

    def test_the_hierarchy_sends_little_more_than_the_least(self):
        # A host must send 2 (M-1)/M of the buffer, for M = 2 hosts: SIZE bytes.
        for algorithm in ("hierarchy", "hierarchy_tree"):
            sent = self.sent_a_round(algorithm)
            print(algorithm, [f"{s / SIZE:.3f}" for s in sent])
            if algorithm == "hierarchy":
                for s in sent:
                    self.assertGreater(s, 0.99 * SIZE)  # the counters work
                    self.assertLess(s, MOST * SIZE)

    def test_a_flat_ring_sends_more(self):
        flat = max(self.sent_a_round("ring"))
        print("ring", f"{flat / SIZE:.3f}")
        self.assertGreater(flat, 1.5 * SIZE)  # 2 (n-1)/n for n ranks, over the one link that leaves each host


CASES = {"Bytes": Bytes}

if __name__ == "__main__":
    lab.main(CASES)
