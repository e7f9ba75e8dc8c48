#!/usr/bin/env python3
"""PyTorch's own DistributedTest, from its wheel: over gloo, over ouro in gloo's place, and over ouro under its own name.

Usage: tools/gate torch [--ranks N]... [--only REGEX] [--seconds S] [--minutes M] [--jobs J] [--markdown FILE] [--build DIRECTORY]

Found something: a test that gloo passes and ouro in its place does not, or a test that fails under ouro's own name and is not in
KNOWN. Those that gloo skips (they want GPUs, or another number of ranks) are not tried in its place. Prints a table of counts and what differs
by name; what a test printed is in DIRECTORY/torch/. A process for each table column imports PyTorch once and forks the ranks of
each test.

  --ranks     of each test (2, 3 and 4)
  --only      tests whose names match
  --seconds   after which a test has failed (60)
  --minutes   for each column, after which what is left has failed (40)
  --jobs      columns at the same time (1)
  --markdown  the table goes there, too
  --build     a build folder (build); what the adapter needs is built in it

Exit code: 0; 1 something found; 2 wrong usage or no build; 77 no PyTorch, or without `expecttest` (tools/torch-env --suite).
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[3]
COLUMNS = {"gloo": {"BACKEND": "gloo"}, "in its place": {"BACKEND": "gloo", "OURO_TORCH_AS": "gloo"},
           "as ouro": {"BACKEND": "ouro"}}  # name: variables
# Tests that no third-party backend can pass, with the reason.
KNOWN = {"test_ddp_logging_data_cpu": "PyTorch's ProcessGroup says 'custom' for every backend that is not its own"}
FATAL = (-4, -6, -7, -8, -11)  # signals of program errors, which DistributedTest does not notice on all ranks


def column():
    """Runs in a process of its own: all tests of one column. Writes a line of JSON for each to
    the descriptor SUITE_RESULTS."""
    sys.argv = sys.argv[:1]  # PyTorch reads it while it is imported
    import multiprocessing
    import unittest

    import ouro.torch
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    results = os.fdopen(int(os.environ["SUITE_RESULTS"]), "w", buffering=1)
    ouro.torch.register()

    class Suite(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        def tearDown(self):
            ranks = self.processes
            codes = [p.exitcode for p in ranks]
            super().tearDown()
            for p in ranks:
                p.join(2)
                if p.is_alive():
                    p.kill()
                    p.join()
            self.assertFalse([c for c in codes if c in FATAL], f"ranks ended with {codes}")

    class Result(unittest.TestResult):
        def startTest(self, test):
            super().startTest(test)
            print(f"==== {test._testMethodName}", flush=True)
            self.outcome, self.why = "passed", ""

        def fail(self, _, error):
            lines = re.split(r"\n\s*To execute this test|\nProcess [1-9]", str(error[1]))[0].split("\n")  # rank 0's
            last = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), default=0)
            self.outcome, self.why = "failed", " ".join(filter(None, lines[last:]))[:400]

        addFailure = addError = fail

        def addSkip(self, _, why):
            self.outcome, self.why = "skipped", why

        def stopTest(self, test):
            super().stopTest(test)
            print(f"==== {self.outcome} {self.why}", flush=True)
            results.write(json.dumps([test._testMethodName, self.outcome, self.why]) + "\n")

    names = json.loads(os.environ["SUITE_NAMES"]) or unittest.defaultTestLoader.getTestCaseNames(Suite)
    chosen = re.compile(os.environ["SUITE_ONLY"])
    unittest.TestSuite(Suite(n) for n in names if chosen.search(n)).run(Result())
    results.write(json.dumps(["", "ended", ""]) + "\n")


def environment(options):
    return os.environ | {"PYTHONPATH": str(TREE / "api/python"), "OURO_BUILD_DIR": str(options.build), "PYTHONDONTWRITEBYTECODE": "1",
                         "OURO_TORCH_CACHE": str(options.build / "tests/api/torch/cache")}


def run(options, interpreter, ranks, name, names):
    """{test: (outcome, why)} of one column; `names`: only these tests, if not empty."""
    folder = options.build / "torch"
    log, results = (folder / f"{name.replace(' ', '_')}-{ranks}.{kind}" for kind in ("log", "json"))
    with open(log, "w") as output, open(results, "w") as lines:
        variables = COLUMNS[name] | {
            "WORLD_SIZE": str(ranks), "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(options.seconds), "OMP_NUM_THREADS": "1",
            "SUITE_RESULTS": str(lines.fileno()), "SUITE_NAMES": json.dumps(names), "SUITE_ONLY": options.only}
        process = subprocess.Popen([interpreter, __file__, "--column"], stdout=output, stderr=subprocess.STDOUT, pass_fds=[lines.fileno()],
                                   env=environment(options) | variables, cwd=folder, start_new_session=True)
        try:
            process.wait(timeout=options.minutes * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # with its ranks
            process.wait()
    found = {test: (outcome, why) for test, outcome, why in map(json.loads, results.read_text().splitlines())}
    if not found.pop("", None):
        found["the rest"] = "failed", f"the column did not come to its end: {log}"
    return found


def at(options, interpreter, ranks):
    """The columns of one number of ranks: {name: {test: (outcome, why)}}."""
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        own = pool.submit(run, options, interpreter, ranks, "as ouro", [])
        gloo = pool.submit(run, options, interpreter, ranks, "gloo", []).result()
        tried = [test for test, (outcome, _) in gloo.items() if outcome != "skipped"]
        place = run(options, interpreter, ranks, "in its place", tried) if tried else {}
        return {"gloo": gloo, "in its place": place, "as ouro": own.result()}


def row(ranks, columns):
    """A row of the table, what was found, and other differences."""
    counts = [ranks]
    for outcomes in columns.values():
        counts += [sum(o == kind for o, _ in outcomes.values()) for kind in ("passed", "failed")]
    gloo, place, own = columns.values()
    found = [f"{ranks} ranks, in gloo's place: {t}: {place.get(t, ('', 'not run'))[1]}" for t, (o, _) in gloo.items()
             if o == "passed" and place.get(t, ("", ""))[0] != "passed"]
    found += [f"{ranks} ranks, as ouro: {t}: {why}" for t, (o, why) in own.items() if o == "failed" and t not in KNOWN]
    found += [f"{ranks} ranks, gloo: {gloo['the rest'][1]}"] if "the rest" in gloo else []
    more = [f"{ranks} ranks: {t} passes in gloo's place, over gloo: {gloo[t][1]}"
            for t, (o, _) in place.items() if o == "passed" and gloo[t][0] == "failed"]
    more += [f"{ranks} ranks, as ouro: {t} fails, as it must: {why}" for t, why in KNOWN.items() if own.get(t, ("", ""))[0] == "failed"]
    return "| " + " | ".join(map(str, counts)) + " |", found, more


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("Usage: "), add_help=False)
    parser.add_argument("--ranks", type=int, action="append", choices=[2, 3, 4])
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--minutes", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, choices=[1, 2])
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    parser.add_argument("-h", "--help", action="store_true")
    options = parser.parse_args()
    if options.help:
        return print(__doc__.strip())
    if not 10 <= options.seconds <= 600 or not 1 <= options.minutes <= 1440:
        parser.error("--seconds takes 10 to 600, --minutes 1 to 1440")
    import places
    interpreter = places.interpreter()
    if subprocess.run([interpreter, "-c", "import expecttest"], capture_output=True).returncode:
        print("SKIP: not installed: expecttest, which PyTorch's tests import; tools/torch-env --suite installs it")
        sys.exit(77)
    options.build = options.build.absolute()
    (options.build / "torch").mkdir(parents=True, exist_ok=True)
    if not (options.build / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", TREE, "-B", options.build, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DOURO_CUDA=off", "-DOURO_BENCH=OFF",
                        "-Wno-dev"], stdout=subprocess.DEVNULL).returncode and sys.exit(2)
    subprocess.run(["cmake", "--build", options.build, "-j", "2", "--target", "ouro", "ouro_python"]).returncode and sys.exit(2)
    subprocess.run([interpreter, "-c", "from ouro.torch import build; build.adapter()"], env=environment(options)).returncode and sys.exit(2)

    table = ["| ranks | gloo passes | fails | ouro in its place passes | fails | ouro as ouro passes | fails |", "|---|---|---|---|---|---|---|"]
    print(*table, sep="\n", flush=True)
    found, more = [], []
    for ranks in options.ranks or [2, 3, 4]:
        line, *lists = row(ranks, at(options, interpreter, ranks))
        print(line, flush=True)
        table.append(line)
        found += lists[0]
        more += lists[1]
    print(*(f"FOUND: {f}" for f in found), *more, sep="\n")
    if options.markdown:
        options.markdown.write_text("\n".join(table) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    column() if "--column" in sys.argv else main()
