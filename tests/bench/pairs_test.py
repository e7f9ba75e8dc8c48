# bench/compare --transport: ratios are of the same round, wrong results void a row, ucx_perftest's words are understood.
import unittest

import here  # noqa: F401  (finds the package)
from comparison import pairs
from comparison.pairs import ALL_REDUCE, LATENCY, STREAM, TWO_WAY, Sample

PERFTEST = """+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
                       20000      5.070     5.387     5.400        1.42       1.42      185635      200000
"""


def row(samples, transport="ucx"):
    found = pairs.rows(samples, transport)
    assert len(found) == 1, found
    return found[0]


class Rows(unittest.TestCase):
    def test_ratio_is_the_median_of_rounds(self):
        ouro = [Sample("ouro", r, STREAM, 1 << 20, us) for r, us in enumerate((100, 200, 400))]
        peer = [Sample("tag_bw", r, STREAM, 1 << 20, us) for r, us in enumerate((110, 180, 400))]
        found = row(ouro + peer)
        self.assertAlmostEqual(found["ratio"], 1.0)
        self.assertEqual((found["verdict"], found["rounds"]), ("met", 3))
        self.assertEqual([round(x, 2) for x in found["spread"]], [0.9, 1.1])

    def test_rounds_that_one_side_lacks_do_not_count(self):
        found = row([Sample("ouro", 1, STREAM, 1 << 20, 100), Sample("tag_bw", 0, STREAM, 1 << 20, 1),
                     Sample("tag_bw", 1, STREAM, 1 << 20, 94)])
        self.assertEqual((found["rounds"], found["verdict"]), (1, "not met"))
        alone = row([Sample("tag_bw", 0, STREAM, 1 << 20, 1)])
        self.assertEqual((alone["ratio"], alone["verdict"]), (None, "no rounds"))

    def test_a_wrong_result_voids_the_row(self):
        for wrong in ("ouro", "ompi-tcp"):
            found = row([Sample(p, 0, LATENCY, 8, 5, 1 if p == wrong else 0) for p in ("ouro", "ompi-tcp")])
            self.assertEqual((found["verdict"], found["ratio"]), ("void", None))

    def test_targets(self):
        self.assertAlmostEqual(pairs.target("ucx", LATENCY, 8, "ucp_am_lat"), 1 / 1.1)
        self.assertEqual(pairs.target("ucx", STREAM, 1 << 20, "tag_bw"), 0.95)
        self.assertEqual(pairs.target("ucx", ALL_REDUCE, 16 << 20, TWO_WAY), 0.85)
        self.assertIsNone(pairs.target("ucx", ALL_REDUCE, 1 << 20, TWO_WAY))
        self.assertEqual(pairs.target("tcp", ALL_REDUCE, 8, "ompi-tcp"), 1.0)
        self.assertIsNone(pairs.target("tcp", LATENCY, 8, "ucp_am_lat"))

    def test_table_and_fields_hold_what_the_rows_hold(self):
        found = pairs.rows([Sample("ouro", 0, LATENCY, 8, 5.0), Sample("tag_lat", 0, LATENCY, 8, 4.5),
                            Sample("ompi-tcp", 0, LATENCY, 8, 6.0)], "ucx")
        text = pairs.table(found)
        self.assertEqual(len(text.splitlines()), 3)
        self.assertIn("1.20", text)
        for r in found:
            self.assertEqual(set(r), set(pairs.FIELDS))


class Perftest(unittest.TestCase):
    def test_its_last_line(self):
        self.assertEqual(pairs.perftest_us(PERFTEST, LATENCY), 5.070)
        self.assertEqual(pairs.perftest_us(PERFTEST, STREAM), 5.0)

    def test_an_error_is_no_number(self):
        self.assertIsNone(pairs.perftest_us("connection refused\n", LATENCY))
        self.assertIsNone(pairs.perftest_us("", STREAM))


class Arguments(unittest.TestCase):
    def test_what_it_does_not_go_with(self):
        from comparison import command

        self.assertEqual(command.parse(["--transport", "tcp", "--quick"]).transport, "tcp")
        for more in (["--sweep"], ["--only", "bytes=8"], ["--plot", "x.svg"]):
            with self.assertRaises(SystemExit):
                command.parse(["--transport", "ucx", *more])
        with self.assertRaises(SystemExit):
            command.parse(["--transport", "pigeon"])


if __name__ == "__main__":
    unittest.main()
