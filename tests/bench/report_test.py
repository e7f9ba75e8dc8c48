# JSON rows have exactly their keys; table, CSV and plot hold what the rows hold.
import json
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

import here
from comparison import plot, report

KEYS = {"collective", "ranks", "bytes", "dtype", "buffer", "method", "mode", "in_place", "ouro_us", "p99_us", "best_peer",
        "best_peer_us", "ratio", "limit_share", "bare", "bare_us", "bare_share"}
FACTS = {"machine": {"processor": "a <b>", "cores": 2, "kernel": "6"}, "rounds": 2, "commit": "abc"}


def some_rows():
    samples = []
    for size in (8, 1 << 20, 128 << 20):
        k = here.key(size=size)
        for r in range(2):
            samples += [here.sample("ouro", r, size / 1e4 + 1, k), here.sample("ompi", r, size / 5e3 + 1, k),
                        here.sample("gloo-ring", r, size / 1e3 + 99, k)]
    return here.rows(samples)


class Report(unittest.TestCase):
    def test_json(self):
        rows = some_rows()
        read = json.loads(report.json_text(report.document(rows, FACTS)))
        self.assertEqual([set(r) for r in read["rows"]], [KEYS] * 3)
        self.assertEqual([r["bytes"] for r in read["rows"]], [8, 1 << 20, 128 << 20])
        self.assertEqual(read["rows"][0]["best_peer"], "ompi")
        self.assertIs(read["rows"][0]["in_place"], False)
        self.assertEqual([set(p) for p in read["peers"]], [{"ompi", "gloo-ring"}] * 3)
        self.assertEqual([j["rounds"] for j in read["judgements"]], [2] * 3)
        self.assertEqual(read["commit"], "abc")

    def test_csv(self):
        head, *lines = report.csv_text(*report.csv_rows(some_rows())).splitlines()
        self.assertTrue(head.startswith("collective,ranks,bytes,dtype,buffer,method,mode,in_place,ouro_us"))
        self.assertEqual(len(lines), 3)

    def test_an_output_is_opened_early_and_replaced_late(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x"
            report.Output(path).close()
            self.assertFalse(path.exists())  # nothing was measured
            path.write_text("a longer text of before\n")
            report.Output(path).close()
            self.assertEqual(path.read_text(), "a longer text of before\n")
            new = report.Output(path)
            new.write("new\n")
            new.close()
            self.assertEqual(path.read_text(), "new\n")
            with self.assertRaises(OSError):
                report.Output(path / "below a file")
        null = report.Output("/dev/null")
        null.write("x")
        null.close()

    def test_table(self):
        lines = report.table(some_rows()).splitlines()
        self.assertEqual(len(lines), 5)  # head, rows, count
        self.assertIn("128 MiB", lines[3])
        self.assertTrue(lines[4].startswith("3 rows: "))

    def test_plot_is_well_formed_and_has_all_points(self):
        page = plot.page(some_rows(), FACTS)
        root = xml.etree.ElementTree.fromstring(page)
        circles = root.findall("{http://www.w3.org/2000/svg}circle")
        self.assertEqual(len(circles), 3 * 3 * 2)  # sizes, series, diagrams
        xml.etree.ElementTree.fromstring(plot.page([], FACTS))

    def test_bus_bandwidth(self):
        self.assertAlmostEqual(plot.bus_bandwidth(here.key(ranks=4, size=10**6), 1000.0), 1.5)
        self.assertAlmostEqual(plot.bus_bandwidth(here.key("all_gather", 4, 10**6), 1000.0), 0.75)


if __name__ == "__main__":
    unittest.main()
