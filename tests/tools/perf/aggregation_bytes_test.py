# The bytes that a federated average moves between two sites, by the counters of their interfaces: the arrays of
# the senders and nothing else. No timing. Usage: aggregation_bytes_test.py BIN CASE. Needs root; skipped
# without namespaces.
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system/hosts"))
import lab  # noqa: E402

SIZE = 4 << 20
FEW, MANY = 2, 6
MOST = 1.05  # multiple of the minimum, including headers of TCP and of frames, signs of life and acknowledgements


def sent(host):
    return int(lab.on(host, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))


class AggregationBytes(unittest.TestCase):
    hosts = 2

    def arrays(self, sites, *options):
        """How many times SIZE each site sends in an average of SIZE bytes per rank, if sites are hosts."""
        def total(rounds):
            before = [sent(i) for i in range(2)]
            code, _, text = lab.ouro_run(sites, lab.BIN / "ouro-perf", "aggregation", "--sites",
                                         ",".join(map(str, sites)), "--strategy", "bucket_optimized_coalesced",
                                         "--streams", 1, "-b", SIZE, "-e", SIZE, "-w", 0, "-c", 0, "-n", rounds, *options)
            self.assertEqual(code, 0, text)
            return [sent(i) - b for i, b in enumerate(before)]
        # A row averages `rounds` times with a plan and as often without; everything else is equal in both runs.
        few, many = total(FEW), total(MANY)
        times = [(m - f) / (2 * (MANY - FEW) * SIZE) for f, m in zip(few, many)]
        print(sites, *options, "arrays out of each site:", [f"{t:.3f}" for t in times])
        return times

    def expect(self, times, senders):
        for t in times:
            self.assertGreater(t, 0.99 * senders)  # checks that the counters work
            self.assertLess(t, MOST * senders)

    def test_an_asymmetric_federation_moves_the_senders_arrays(self):
        self.expect(self.arrays((4, 2), "--hsdp", 2), 2)

    def test_replicas_that_all_meet_cost_as_many_times_as_there_are(self):
        self.expect(self.arrays((2, 2), "--hsdp", 1), 1)
        self.expect(self.arrays((2, 2), "--hsdp", 1, "--groups", "all_replicas"), 2)


CASES = {"AggregationBytes": AggregationBytes}

if __name__ == "__main__":
    lab.main(CASES)
