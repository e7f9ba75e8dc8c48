# Every program, in every form of its output, with every way to lose it: lost output must never count as written.
# Usage: output_test.py BIN [unittest's arguments]. Run by ctest.
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else Path("build/bin")
SECONDS = 60
PERF = ["ouro-perf", "all_reduce", "-b", "8", "-e", "64", "-f", "8", "-n", "2", "-w", "0"]
TRAIN = ["ouro-train", "digits", "--steps", "2", "--quiet"]

# Each prints something to standard output and exits with 0 if it can be written.
PRINTS = [
    ["ouro-info"], ["ouro-info", "--brief"], ["ouro-info", "--json"], ["ouro-info", "-c"], ["ouro-info", "--help"],
    ["ouro-info", "--version"],
    ["ouro-sim", "all_reduce"], ["ouro-sim", "all_reduce", "--json", "-"], ["ouro-sim", "--help"],
    ["ouro-topo", "list"], ["ouro-topo", "graph", "ring", "-n", "8"], ["ouro-topo", "graph", "ring", "-n", "8", "--json"],
    ["ouro-topo", "graph", "--help"],
    TRAIN, ["ouro-train", "digits", "--help"],
    PERF, PERF + ["--csv"], PERF + ["--json"], PERF + ["--osu"], PERF + ["-t", "3"], PERF + ["--verdict"],
    ["all_reduce_perf"] + PERF[2:], ["ouro-perf", "--help"],
    ["ouro-perf", "aggregation", "-t", "2", "-b", "4K", "-e", "4K", "-n", "2", "--csv"],
]
# Each writes the file whose name is appended.
WRITES = [
    ["ouro-sim", "all_reduce", "--json"], ["ouro-topo", "graph", "ring", "-n", "8", "--svg"],
    TRAIN + ["--json"], TRAIN + ["--csv"], TRAIN + ["--plot"],
    PERF + ["-J"], PERF + ["--plot"], ["ouro-perf", "all_gather", "-t", "2", "-b", "64", "-e", "64", "--tune"],
]


def name(command):
    return "ouro-perf" if command[0].endswith("_perf") else command[0]


def run(command, **how):
    """Runs a program in BIN. Its standard error is always read."""
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "timeout": SECONDS,
           **how}
    return subprocess.run([str(BIN / command[0]), *map(str, command[1:])], text=True, errors="replace", **how)


def shell(script, command, **how):
    """Runs the shell code `script`, which ends in "$@" with its redirections."""
    inside = ["sh", "-c", script, "sh", str(BIN / command[0]), *map(str, command[1:])]
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": SECONDS, **how}
    if "stdout" in how:
        how.pop("capture_output")
    return subprocess.run(inside, text=True, errors="replace", **how)


def on_full_disk(command, out, **how):
    """Runs the command with a full file system of its own at $D."""
    script = ('mount -t tmpfs -o size=16k none "$D" || exit 99; head -c 64k /dev/zero >"$D/filler" 2>/dev/null; '
              f'"$@" {out}; code=$?; ls -A "$D" >&2; exit $code')
    with tempfile.TemporaryDirectory() as folder:
        command = [str(word).replace("$D", folder) for word in command]
        inside = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh", str(BIN / command[0]),
                  *command[1:]]
        return subprocess.run(inside, text=True, capture_output=True, timeout=SECONDS, env={**os.environ, "D": folder},
                              stdin=subprocess.DEVNULL, **how)


class Lost(unittest.TestCase):
    def fails(self, done, command, why):
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"{name(command)}: cannot write standard output: {why}\n", done.stderr)

    def test_nothing_is_lost(self):
        for command in PRINTS:
            with self.subTest(" ".join(command)):
                done = run(command, stdout=subprocess.PIPE)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreater(len(done.stdout), 3)
                self.assertNotIn("cannot write", done.stderr)

    def test_full_device(self):
        for command in PRINTS:
            with self.subTest(" ".join(command)):
                with open("/dev/full", "w") as full:
                    self.fails(run(command, stdout=full), command, "No space left on device")

    def test_closed(self):
        for command in PRINTS:
            with self.subTest(" ".join(command)):
                self.fails(shell('exec "$@" >&-', command), command, "Bad file descriptor")

    def test_full_file_system(self):
        probe = on_full_disk(["ouro-info", "--version"], "")
        if probe.returncode in (1, 99) and "ouro-info" not in probe.stderr and "filler" not in probe.stderr:
            self.skipTest("this system allows no mount namespaces: " + probe.stderr.strip())
        for command in PRINTS:
            with self.subTest(" ".join(command)):
                self.fails(on_full_disk(command, '>"$D/out"'), command, "No space left on device")

    def test_reader_has_gone(self):
        """The program ends as a filter does, whether or not the shell or service that started it ignored
        SIGPIPE."""
        for command in PRINTS:
            with self.subTest(" ".join(command)):
                for restored in (True, False):
                    reader, writer = os.pipe()
                    os.close(reader)
                    done = run(command, stdout=writer, restore_signals=restored)
                    os.close(writer)
                    self.assertEqual(done.returncode, -signal.SIGPIPE, done.stderr)
                    self.assertNotIn("ouro-perf: " if "--csv" in command else "ouro", done.stderr)

    def test_reader_goes_in_the_middle(self):
        reader, writer = os.pipe()
        child = subprocess.Popen([str(BIN / "ouro-perf"), "all_reduce", "-b", "8", "-e", "8", "-n", "1", "-N", "100000000"],
                                 stdout=writer, stderr=subprocess.PIPE, text=True, restore_signals=False)
        os.close(writer)
        self.assertTrue(os.read(reader, 1))
        os.close(reader)
        _, words = child.communicate(timeout=SECONDS)
        self.assertEqual((child.returncode, words), (-signal.SIGPIPE, ""))

    def test_slow_reader_of_a_pipe_that_does_not_block(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        child = subprocess.Popen([str(BIN / "ouro-topo"), "graph", "complete", "-n", "128", "--json"], stdout=writer,
                                 stderr=subprocess.PIPE)
        os.close(writer)
        with os.fdopen(reader) as out:
            self.assertEqual(json.load(out)["ranks"], 128)
        self.assertEqual(child.communicate(timeout=SECONDS), (None, b""))
        self.assertEqual(child.returncode, 0)

    def test_standard_error_is_lost(self):
        for command in (["ouro-info", "--x"], ["ouro-sim", "x"], ["ouro-topo", "x"], ["ouro-train", "x"], ["ouro-perf", "x"],
                        ["ouro-perf", "all_reduce", "-f", "-2"]):
            for where in ("2>/dev/full", "2>&-"):
                with self.subTest(f"{command} {where}"):
                    self.assertEqual(shell(f'exec "$@" {where}', command).returncode, 2)
        done = shell('exec "$@" 2>/dev/full', TRAIN[:-1])  # its progress output
        self.assertEqual(done.returncode, 0)
        self.assertIn("final loss", done.stdout)

    def test_no_descriptor_at_all(self):
        """Files and sockets of the program must not take the place of standard output."""
        for option, command in (("-J", PERF + ["-t", "2"]), ("--json", TRAIN)):
            with self.subTest(option), tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "out.json"
                done = shell('exec "$@" <&- >&- 2>&-', [*command, option, file])
                self.assertEqual(done.returncode, 1)  # the table was lost
                json.loads(file.read_text())


class Files(unittest.TestCase):
    def test_full_device(self):
        for command in WRITES:
            with self.subTest(" ".join(command)):
                done = run([*command, "/dev/full"])
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("/dev/full: cannot be written: No space left on device", done.stderr)

    def test_full_file_system(self):
        if "filler" not in on_full_disk(["ouro-info", "--version"], "").stderr:
            self.skipTest("this system allows no mount namespaces")
        for command in [*WRITES, TRAIN + ["--save"]]:
            with self.subTest(" ".join(command)):
                done = on_full_disk([*command, "$D/file"], "")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, r"/file[.a-z0-9]*: cannot be written: No space left on device")
                self.assertNotIn(".part", done.stderr.split("No space left on device", 1)[1])

    def test_folder_that_is_not_there(self):
        for command in [*WRITES, TRAIN + ["--save"]]:
            with self.subTest(" ".join(command)):
                done = run([*command, "/nowhere/file"])
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("No such file or directory", done.stderr)

    def test_limit_of_file_sizes(self):
        """A file, standard output or a segment that may not grow is an error that names the limit, and no signal."""
        limited = "File too large: files and shared memory of this process are limited to 0 bytes (RLIMIT_FSIZE"
        for command in WRITES:
            with self.subTest(" ".join(command)), tempfile.TemporaryDirectory() as folder:
                done = shell('ulimit -f 0; exec "$@"', [*command, f"{folder}/file"])
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(limited, done.stderr)
        for command in PRINTS:
            with self.subTest(" ".join(command)), tempfile.TemporaryFile() as file:
                done = shell('ulimit -f 0; exec "$@"', command, stdout=file, stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(limited, done.stderr)

    def test_null(self):
        before = set(os.listdir("/dev"))
        for command in WRITES:
            with self.subTest(" ".join(command)):
                done = run([*command, "/dev/null"])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
                self.assertEqual({x for x in set(os.listdir("/dev")) - before if x.startswith(("null", "std"))}, set())

    def test_standard_output(self):
        """/dev/stdout may refer to a pipe or a file; writing continues at its current position."""
        for command in WRITES:
            with self.subTest(" ".join(command)):
                for target in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
                    with tempfile.TemporaryFile("w+") as file:
                        piped = run([*command, target], stdout=subprocess.PIPE)
                        self.assertEqual(piped.returncode, 0, piped.stderr)
                        done = run([*command, target], stdout=file)
                        self.assertEqual(done.returncode, 0, done.stderr)
                        file.seek(0)
                        for text in (piped.stdout, file.read()):
                            self.assertRegex(text, r'</svg>\n|\n *"|step,loss,lr\n1,')
                            if command[0] == "ouro-perf":
                                self.assertTrue(text.startswith("# ouro version"), text[:80])
                done = shell('exec "$@" >&-', [*command, "/dev/stdout"])
                self.assertEqual(done.returncode, 1)
                self.assertIn("/dev/stdout: cannot be written: Bad file descriptor", done.stderr)
        self.assertFalse(os.path.exists("/dev/stdout.0"))

    def test_pipes(self):
        """The pipe is opened only once: the reader gets all of it, and the pipe still exists."""
        for command in WRITES:
            with self.subTest(" ".join(command)):
                with tempfile.TemporaryDirectory() as folder:
                    pipe = Path(folder) / "pipe"
                    os.mkfifo(pipe)
                    got = []
                    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
                    reader.start()
                    done = run([*command, pipe])
                    reader.join(SECONDS)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertGreater(len(got[0]), 20)
                    self.assertEqual(os.listdir(folder), ["pipe"])
                    self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))

    def test_checkpoint_into_a_pipe(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink("/dev/null", Path(folder) / "state.rank0")
            done = run([*TRAIN, "--save", f"{folder}/state"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(os.path.islink(f"{folder}/state.rank0"))

    def test_inputs_without_an_end(self):
        for command in (["ouro-sim", "all_reduce", "-c"], PERF + ["--compare"], TRAIN + ["--resume"]):
            with self.subTest(" ".join(command)), tempfile.TemporaryDirectory() as folder:
                endless = "/dev/zero"
                if "--resume" in command:
                    os.symlink(endless, Path(folder) / "state.rank0")
                    endless = f"{folder}/state"
                done = run([*command, endless])
                self.assertIn(done.returncode, (1, 2), done.stderr)
                self.assertRegex(done.stderr, "cannot be read: it has more than [0-9]+ bytes")
        done = run(PERF, env={**os.environ, "OURO_TUNE": "/dev/zero"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("/dev/zero: ", done.stderr)


class Csv(unittest.TestCase):
    def test_rows_and_nothing_else(self):
        for command in (PERF + ["--csv"], PERF + ["--csv", "--verdict", "-M", "1", "-t", "2"]):
            done = run(command, stdout=subprocess.PIPE)
            lines = done.stdout.splitlines()
            self.assertTrue(lines[0].startswith("size,count,type"), lines[0])
            self.assertEqual([line.split(",")[0] for line in lines[1:]], ["8", "64"])
            self.assertEqual({line.count(",") for line in lines}, {lines[0].count(",")})
            self.assertIn("# Out of bounds values : 0 OK", done.stderr)
            self.assertEqual("# Peak resident" in done.stderr, "-M" in command)


unittest.main()
