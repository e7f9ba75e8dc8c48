# Floors and targets against figures worked out by hand.
import unittest

import here
from comparison import limits, targets

MIB = 1 << 20


class Bytes(unittest.TestCase):
    def test_least_bytes_through_memory(self):
        s = 128 * MIB
        for collective, ranks, expected in (
            ("all_reduce", 2, 4 * s), ("all_reduce", 4, 8 * s), ("broadcast", 2, 2 * s), ("broadcast", 4, 4 * s),
            ("all_gather", 2, 3 * s), ("all_gather", 4, 5 * s),  # (1+N) N S of one part: (1+N) of the whole
            ("reduce_scatter", 2, 3 * s), ("reduce_scatter", 4, 5 * s), ("all_to_all", 2, 4 * s),
        ):
            with self.subTest(collective=collective, ranks=ranks):
                self.assertEqual(sum(limits.memory_bytes(here.key(collective, ranks, s))), expected)

    def test_at_least_one_element_a_rank(self):
        self.assertEqual(limits.payload(here.key("all_gather", 4, 8)), 4)
        self.assertEqual(limits.payload(here.key("reduce_scatter", 4, 8)), 16)
        self.assertEqual(limits.payload(here.key("all_gather", 4, 8, "bfloat16")), 2)


class Floors(unittest.TestCase):
    def floor(self, *args, buffer="private", cores=2, **more):
        return limits.floor_us(here.key(*args, **more), buffer, here.PROBE, cores, here.L3)

    def test_memory_bound(self):
        # 2 N S = 512 MiB at 60 GB/s; in place at the rate of that mix
        self.assertAlmostEqual(self.floor("all_reduce", 2, 128 * MIB), 512 * MIB / 60e3)
        self.assertAlmostEqual(self.floor("all_reduce", 2, 128 * MIB, in_place=True), 512 * MIB / 70e3)
        self.assertAlmostEqual(self.floor("all_reduce", 4, 128 * MIB), 1024 * MIB / 60e3)

    def test_coherence_bound(self):
        s = 65536
        one_shot = 0.05 + s / 100e3 + s / 80e3
        self.assertAlmostEqual(self.floor("all_reduce", 2, s), one_shot)
        direct = 2 * 0.05 + s / 2 / 80e3 + s / 2 / 40e3
        self.assertAlmostEqual(self.floor("all_reduce", 2, s, buffer="registered"), min(direct, 0.05 + s / 80e3))

    def test_where_the_buffers_fill_the_cache(self):
        self.assertTrue(limits.from_memory(here.key(size=16 * MIB), here.L3))
        self.assertFalse(limits.from_memory(here.key(size=MIB), here.L3))
        self.assertTrue(limits.from_memory(here.key("all_gather", 2, 16 * MIB), here.L3))

    def test_no_bound_is_invented(self):
        self.assertIsNone(self.floor("all_reduce", 4, 65536))
        self.assertIsNone(limits.floor_us(here.key(), "private", None, 2, here.L3))
        self.assertIsNone(limits.floor_us(here.key(), "private", {"handoff_ns": 0.0}, 1, here.L3))


class Targets(unittest.TestCase):
    def test_lookups(self):
        self.assertEqual(targets.ratio(here.key(size=8), "private"), 2.5)
        self.assertEqual(targets.ratio(here.key(size=16 * MIB, in_place=True), "registered"), 2.5)
        self.assertEqual(targets.ratio(here.key(ranks=4, size=65536, in_place=True), "registered"), 3.0)
        self.assertEqual(targets.ratio(here.key("broadcast", 4, 1024, in_place=True), "private"), 4.0)
        self.assertEqual(targets.ratio(here.key("all_to_all", 2, MIB), "registered"), 1.5)
        self.assertEqual(targets.share(here.key(size=16 * MIB), "registered"), 0.95)

    def test_no_target_outside_the_table(self):
        for key, buffer in ((here.key(method="B"), "private"), (here.key(dtype="bfloat16"), "private"),
                            (here.key(size=4 * MIB), "private"), (here.key(), "private-4k"), (here.key(ranks=3), "private"),
                            (here.key("all_to_all", 2, 8), "private")):
            with self.subTest(key=key, buffer=buffer):
                self.assertIsNone(targets.ratio(key, buffer))


if __name__ == "__main__":
    unittest.main()
