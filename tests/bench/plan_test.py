# Which launches are made, in which order, with which command lines.
import contextlib
import io
import pathlib
import tempfile
import unittest

import here  # noqa: F401  (finds the package)
from comparison import command, points, settings


def plan(*argv, cores=(0, 1)):
    return command.plan(command.parse(list(argv)), list(settings.SETTINGS), list(cores))


class Plan(unittest.TestCase):
    def test_order_is_reversed_every_other_round(self):
        names = [[s.name for r, _, s, _ in plan("--only", "ranks=2", "--only", "collective=broadcast") if r == k] for k in range(3)]
        self.assertEqual(names[0], [s.name for s in settings.SETTINGS
                                    if not s.algorithm or s.family == "bare" and not s.algorithm.endswith("-two")])
        self.assertEqual(names[1], names[0][::-1])
        self.assertEqual(names[2], names[0])

    def test_who_spins_runs_on_a_core_of_its_own_only(self):
        names = {s.name for _, n, s, _ in plan() if n == 4}
        self.assertFalse(names & {"mpich", "mpich-tuned", "ompi-sm", "ompi-sm-tuned"})
        self.assertIn("mpich", {s.name for _, n, s, _ in plan(cores=range(4)) if n == 4})

    def test_lines(self):
        keys = points.keys(2, ["all_reduce"], [8], ["float32", "bfloat16"], ["A"])
        lines = {s.name: [t.line for t in points.tasks(s, keys, points.BUFFERS)] for s in settings.SETTINGS}
        self.assertEqual(len(lines["ouro"]), 8)
        self.assertIn("all_reduce 8 float32 registered A in", lines["ouro"])
        self.assertEqual(lines["ompi"], ["all_reduce 8 float32 private A out", "all_reduce 8 float32 private A in"])
        self.assertIn("all_reduce 8 bfloat16 private A in bcube", lines["gloo-bcube"])
        self.assertEqual((len(lines["gloo-bcube"]), len(lines["gloo"])), (4, 0))

    def test_the_bare_program_runs_each_way_where_it_exists(self):
        keys = points.keys(2, ["all_reduce", "all_gather"], [1 << 10, 1 << 20], ["float32", "bfloat16"], ["A"])
        lines = {s.name: [t.line for t in points.tasks(s, keys, points.BUFFERS)] for s in settings.SETTINGS if s.family == "bare"}
        self.assertEqual({name: len(of) for name, of in lines.items()},
                         {"bare-rep": 12, "bare-rep-ring": 3, "bare-rep-two": 8, "bare-plain": 12, "bare-stream": 6, "bare-stream-two": 4})
        self.assertIn("all_gather 1048576 float32 registered A out stream", lines["bare-stream"])
        self.assertFalse([line for of in lines.values() for line in of if "bfloat16" in line])

    def test_gloo_and_bfloat16_take_part_in_method_a_only(self):
        tasks = [(s.family, t.key) for _, _, s, some in plan() for t in some]
        self.assertEqual({k.method for family, k in tasks if family == "gloo" or k.dtype == "bfloat16"}, {"A"})
        self.assertEqual({k.method for family, k in tasks if family == "ompi"}, {"A", "B", "C"})

    def test_filters(self):
        launches = plan("--only", "collective=all_gather", "--only", "bytes=64K,1M", "--only", "method=C", "--only", "dtype=float32",
                        "--only", "buffer=registered", "--rounds", "1")
        keys = {t.key for _, _, _, tasks in launches for t in tasks}
        self.assertEqual(keys, {points.Key("all_gather", n, b, "float32", "C", False) for n in (2, 4) for b in (65536, 1 << 20)})
        self.assertEqual({t.buffer for _, _, s, tasks in launches for t in tasks if s.name == "ouro"}, {"registered"})
        for bad in ("color=red", "peers=nccl", "bytes=0", "method=", "bytes=8X", "ranks=two"):
            with self.subTest(bad=bad), self.assertRaisesRegex(ValueError, "--only " + bad):
                command.Filters([bad])

    def test_wrong_arguments_end_before_anything_is_measured(self):
        for bad in (["--block-ms", "-5"], ["--block-ms", "0"], ["--block-ms", "nan"], ["--blocks", "0"], ["--rounds", "0"],
                    ["--json", "/nowhere/x.json"], ["--csv", "/nowhere/x.csv"], ["--plot", "/nowhere/x.svg"]):
            text = io.StringIO()
            with self.subTest(bad=bad), contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as end:
                command.parse(bad)
            self.assertEqual(end.exception.code, 2)
            self.assertIn(bad[0], text.getvalue())

    def test_sizes(self):
        self.assertEqual(points.SWEEP[0], 8)
        self.assertEqual(points.SWEEP[-1], 256 << 20)
        self.assertEqual(command.bytes_of("16M"), 16 << 20)

    def test_missing_programs_are_named_with_their_package(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "bin").mkdir()
            usable, missing = command.available(command.parse(["--build", folder]))
        self.assertEqual(usable, [])
        self.assertIn("libgloo-dev", missing["gloo"])


class Commands(unittest.TestCase):
    def line(self, name, ranks):
        return settings.commands(settings.by_name(name), "/b", ranks, [0, 1], ["--x"])

    def test_open_mpi(self):
        (c,) = self.line("ompi-tuned", 2)
        self.assertEqual(c, ["mpirun.openmpi", "-np", "2", "--bind-to", "core", "--mca", "btl_vader_single_copy_mechanism", "none",
                             "/b/bin/compare_ompi", "--x"])
        (c,) = self.line("ompi", 4)
        self.assertEqual(c[:6], ["mpirun.openmpi", "-np", "4", "--oversubscribe", "--bind-to", "none"])

    def test_own_processes(self):
        self.assertEqual(self.line("ouro", 2), [["/b/bin/compare_ouro", "--x", "--rank", str(r)] for r in range(2)])

    def test_keep_is_set_or_absent(self):
        base = {"PATH": "/bin", "MALLOC_MMAP_MAX_": "7"}
        self.assertEqual(settings.environment(settings.by_name("ompi-tuned"), base)["MALLOC_MMAP_MAX_"], "0")
        self.assertNotIn("MALLOC_MMAP_MAX_", settings.environment(settings.by_name("ompi"), base))
        self.assertTrue(settings.keeps("gloo-bcube"))
        self.assertFalse(settings.keeps("ompi-nocma"))


if __name__ == "__main__":
    unittest.main()
