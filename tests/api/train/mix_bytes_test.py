# The bytes that a mix with one peer moves between two hosts, by the counters of their interfaces: one set of parameters
# out and one in. No timing. Usage: mix_bytes_test.py BIN CASE. Needs root; skipped without namespaces.
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system/hosts"))
import lab  # noqa: E402

SIZE = 8 << 20
MOST = 1.02  # multiple of the minimum, including headers of TCP and of frames, signs of life and acknowledgements


class MixBytes(unittest.TestCase):
    hosts = 2

    def setUp(self):
        if not (lab.BIN / "bench_hosts").exists():
            self.skipTest("no benches in this build")

    def test_one_set_of_parameters_goes_out_and_one_comes_in(self):
        code, events, text = lab.ouro_run((1, 1), lab.BIN / "bench_hosts", "mix", SIZE, 4)
        self.assertEqual(code, 0, text)
        self.assertEqual(set(events), {0, 1}, text)
        for rank, lines in sorted(events.items()):
            sets = [lines[0][way] / SIZE for way in ("sent", "received")]
            print(f"rank {rank}: {sets[0]:.3f} sets sent, {sets[1]:.3f} received")
            for s in sets:
                self.assertGreater(s, 0.99)  # checks that the counters work; a packet may pass while one is read
                self.assertLess(s, MOST)


CASES = {"MixBytes": MixBytes}

if __name__ == "__main__":
    lab.main(CASES)
