# compare_bare computes right results: the harness verifies each point, here with 2 and 3 ranks and blocks of almost no time.
# Usage: bare_test.py compare_bare
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SIZES = (8, 1000, 4000, 262140, (3 << 20) + 4)  # inline, eager, one slot, several; few are multiples of 3 floats
PLACES = {"all_reduce": ("in", "out"), "broadcast": ("in",)}
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


def lines(way):
    return [f"{c} {size} float32 {buffer} A {place} {way}" for c in COLLECTIVES for size in SIZES
            for buffer in ("private", "registered") for place in PLACES.get(c, ("out",))]


class Bare(unittest.TestCase):
    def test_results(self):
        for ranks in (2, 3):
            for way in ("rep", "rep-two", "plain", "stream", "stream-two"):
                with self.subTest(ranks=ranks, way=way), tempfile.TemporaryDirectory() as folder:
                    points = pathlib.Path(folder) / "points"
                    points.write_text("\n".join(lines(way)) + "\n")
                    common = [PROGRAM, "--points", points, "--directory", folder, "--ranks", str(ranks), "--cores", "0",
                              "--blocks", "1", "--block-ms", "0.1", "--seconds", "60"]
                    processes = [subprocess.Popen([*common, "--rank", str(r)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                  text=True) for r in range(ranks)]
                    said = [p.communicate() for p in processes]
                    self.assertEqual([p.returncode for p in processes], [0] * ranks, [err for _, err in said])
                    found = [json.loads(line) for line in said[0][0].splitlines()]
                    measured = [f for f in found if "wrong" in f]
                    self.assertGreater(len(measured), 0)
                    self.assertEqual([f for f in measured if f["wrong"]], [])
                    self.assertEqual(len(measured) + sum("unsupported" in f for f in found), len(lines(way)))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
