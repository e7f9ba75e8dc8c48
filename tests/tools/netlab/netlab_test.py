# tools/netlab: what it creates, how fast its links are, and that nothing of it remains. Usage: netlab_test.py BIN,
# the folder of netlab, tapnet and ouro-run. Needs root; skips with a reason if namespaces cannot be created.
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system/hosts"))
from lab_result import CANNOT, exit_code  # noqa: E402  (its folder is found only now)

BIN = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else pathlib.Path("bin").resolve()
NETLAB = str(BIN / "netlab")
USAGE = 2
ROOM = pathlib.Path("/run/ouro-netlab")

SERVER = """
import socket
with socket.create_server(("10.77.0.1", 5000)) as s:
    c, _ = s.accept()
    while d := c.recv(65536):
        c.sendall(d)
"""
CLIENT = """
import socket, sys, time
for _ in range(100):
    try:
        s = socket.create_connection(("10.77.0.1", 5000))
        break
    except OSError:
        time.sleep(0.02)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(5):
    begin = time.monotonic()
    s.sendall(b"x")
    s.recv(1)
    trips.append(time.monotonic() - begin)
want, sent, got, begin = int(sys.argv[1]), 0, 0, time.monotonic()
while got < want:
    if sent < want:
        s.sendall(b"y" * 65536)
        sent += 65536
    got += len(s.recv(65536))
s.shutdown(socket.SHUT_WR)
rate_end = time.monotonic()
while s.recv(65536):
    pass
print(min(trips) * 1e3, got / (rate_end - begin) / 1e6)
"""


def netlab(*arguments, check=0):
    done = subprocess.run([NETLAB, *arguments], capture_output=True, text=True, timeout=60)
    if check is not None and done.returncode != check:
        raise AssertionError(f"netlab {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def hosts(name):
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return sorted(line.split()[0] for line in listed.splitlines() if line.startswith(name + "-"))


def processes(text):
    """Ids of living processes whose command line contains `text`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text in (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(path.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


def command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def eventually(what, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return what()


def speed(name, megabytes):
    """(round trip in ms, MB/s there and back) between hosts 1 and 0."""
    server = subprocess.Popen([NETLAB, "exec", name, "0", sys.executable, "-c", SERVER])
    try:
        client = netlab("exec", name, "1", sys.executable, "-c", CLIENT, str(megabytes * 1_000_000))
    finally:
        server.wait(10)
    trip, rate = client.stdout.split()
    return float(trip), float(rate)


class LabCase(unittest.TestCase):
    count = 0  # number of labs over all cases

    @classmethod
    def setUpClass(cls):
        first = subprocess.run([NETLAB, "run", f"x{os.getpid()}"[:12], "2", "--", "true"], capture_output=True, text=True)
        if first.returncode == CANNOT:
            raise unittest.SkipTest("this system allows no labs: " + first.stderr.strip())

    def setUp(self):
        LabCase.count += 1
        self.name = f"t{os.getpid()}x{LabCase.count}"[-12:]

    def tearDown(self):
        subprocess.run([NETLAB, "down", self.name], capture_output=True, timeout=60)
        self.assertTrue(eventually(lambda: hosts(self.name) == []), hosts(self.name))
        self.assertTrue(eventually(lambda: list(ROOM.glob(f"{self.name}*")) == []), list(ROOM.glob(f"{self.name}*")))


class Up(LabCase):
    def test_up_gives_hosts_with_addresses_and_down_leaves_nothing(self):
        netlab("up", self.name, "3")
        self.assertEqual(hosts(self.name), [f"{self.name}-{h}" for h in ("0", "1", "2", "net")])
        self.assertEqual(processes(self.name), [])  # a plain lab needs no process
        for i in range(3):
            shown = netlab("exec", self.name, str(i), "ip", "-br", "address").stdout
            self.assertIn(f"10.77.0.{i + 1}/24", shown)
            self.assertIn("127.0.0.1/8", shown)
            if pathlib.Path("/proc/net/if_inet6").exists():
                self.assertIn(f"fd77::{i + 1}/64", shown)
        again = netlab("up", self.name, "2", check=1)
        self.assertIn("exists", again.stderr)
        netlab("down", self.name)
        self.assertEqual(hosts(self.name), [])
        self.assertEqual(list(ROOM.glob(f"{self.name}*")), [])  # neither its state nor its lock
        netlab("down", self.name, check=1)
        self.assertEqual(list(ROOM.glob(f"{self.name}*")), [])

    def test_two_at_once_exclude_each_other_though_locks_come_and_go(self):
        for _ in range(5):
            both = [subprocess.Popen([NETLAB, "run", self.name, "2", "--", "ip", "netns", "exec", f"{self.name}-1",
                                      "ip", "address", "show", "eth0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                     text=True) for _ in range(2)]
            errors = [each.communicate(timeout=60)[1] for each in both]
            self.assertEqual([each.returncode for each in both], [0, 0], errors)
            self.assertEqual(list(ROOM.glob(f"{self.name}*")), [])

    def test_what_only_the_kernel_knows_to_be_wrong_is_wrong_usage(self):
        netlab("up", self.name, "2", "--rate", "1foobit", check=USAGE)
        netlab("up", self.name, "2", "--emulate", "loss=x", check=USAGE)

    def test_down_ends_what_still_runs(self):
        netlab("up", self.name, "2")
        left = subprocess.Popen([NETLAB, "exec", self.name, "1", "sleep", "60"])
        self.assertTrue(eventually(lambda: pathlib.Path(f"/proc/{left.pid}/comm").read_text() == "sleep\n"))
        self.assertIn(str(left.pid), netlab("down", self.name).stderr)
        self.assertEqual(left.wait(5), -signal.SIGKILL)


class Links(LabCase):
    def test_the_rate_holds_there_and_back(self):
        netlab("up", self.name, "2", "--rate", "100mbit")
        _, rate = speed(self.name, 4)
        self.assertLess(rate, 12.6)  # MB/s; 12.5 would be all of it
        self.assertGreater(rate, 5)

    def test_without_a_rate_a_link_is_fast(self):
        netlab("up", self.name, "2")
        trip, rate = speed(self.name, 16)
        self.assertLess(trip, 5)
        self.assertGreater(rate, 40)

    def test_emulation_delays_and_changes_while_it_runs(self):
        netlab("up", self.name, "2", "--emulate", "seed=7", "delay=10")
        trip, _ = speed(self.name, 0)
        self.assertGreater(trip, 20)
        self.assertIn("ok", netlab("ctl", self.name, "set 0 1 delay=40").stdout)
        trip, _ = speed(self.name, 0)
        self.assertGreater(trip, 50)
        self.assertIn('"decided":', netlab("ctl", self.name, "stats").stdout)
        self.assertIn("does not understand", netlab("ctl", self.name, "set 0 1 loss=lots", check=1).stderr)
        emulator = pathlib.Path("/run/ouro-netlab", self.name, "tapnet").read_text().strip()
        netlab("down", self.name)
        self.assertTrue(eventually(lambda: int(emulator) not in processes("tapnet")))


class Run(LabCase):
    def test_run_returns_the_code_of_its_command(self):
        done = netlab("run", self.name, "2", "--", "sh", "-c", "echo $NETLAB_HOSTS $NETLAB_NAME $NETLAB_AGENT; exit 5",
                      check=5)
        n = self.name
        self.assertEqual(done.stdout, f"{n}-0,{n}-1 {n} ip netns exec {{host}}\n")
        self.assertEqual(hosts(n), [])
        self.assertEqual(processes(n), [])

    def killed(self, number, *options):
        """Kills a `run` while its command and a process on host 0 sleep; returns its exit code once all of it is
        gone."""
        mark = f"6{os.getpid()}{LabCase.count}"
        lab = subprocess.Popen([NETLAB, "run", self.name, "2", *options, "--", "sh", "-c",
                                f"ip netns exec {self.name}-0 sleep {mark} & exec sleep {mark}"], stderr=subprocess.PIPE)
        sleepers = lambda: [pid for pid in processes(f"sleep {mark}") if command(pid) == "sleep"]
        try:
            self.assertTrue(eventually(lambda: len(sleepers()) == 2))
            lab.send_signal(number)
        except BaseException:
            lab.terminate()
            raise
        code = lab.wait(10)
        lab.stderr.close()
        self.assertTrue(eventually(lambda: hosts(self.name) == []), hosts(self.name))
        self.assertTrue(eventually(lambda: sleepers() == []))
        self.assertTrue(eventually(lambda: processes(self.name) == []), processes(self.name))
        self.assertTrue(eventually(lambda: list(ROOM.glob(f"{self.name}*")) == []), list(ROOM.glob(f"{self.name}*")))
        return code

    def test_a_killed_run_leaves_nothing(self):
        self.assertEqual(self.killed(signal.SIGKILL), -signal.SIGKILL)

    def test_a_killed_run_with_emulation_leaves_nothing(self):
        self.assertEqual(self.killed(signal.SIGKILL, "--emulate", "delay=1"), -signal.SIGKILL)

    def test_a_run_that_is_asked_to_end_leaves_nothing(self):
        self.assertEqual(self.killed(signal.SIGTERM), 128 + signal.SIGTERM)

    def test_ruins_are_cleared_by_the_next_up(self):
        # The state after a run that died together with its guard: a namespace, and a state without the mark of a
        # complete lab.
        subprocess.run(["ip", "netns", "add", f"{self.name}-1"], check=True)
        (ROOM / self.name).mkdir(parents=True)
        netlab("run", self.name, "2", "--", "ip", "netns", "exec", f"{self.name}-1", "true")
        self.assertEqual(hosts(self.name), [])

    def test_a_lab_in_use_is_not_touched(self):
        first = subprocess.Popen([NETLAB, "run", self.name, "2", "--", "sleep", "8"])
        self.assertTrue(eventually(lambda: len(hosts(self.name)) == 3))
        self.assertIn("in use", netlab("up", self.name, "2", check=1).stderr)
        self.assertEqual(len(hosts(self.name)), 3)
        first.terminate()
        self.assertEqual(first.wait(10), 128 + signal.SIGTERM)


class Usage(unittest.TestCase):
    def test_usage(self):
        name = "usage"
        for arguments in (["up"], ["up", "UPPER", "2"], ["up", "a" * 13, "2"], ["up", name], ["up", name, "1"],
                          ["up", name, "9"], ["up", name, "2", "--rate"], ["up", name, "2", "--rate", "fast"],
                          ["up", name, "2", "--what"], ["run", name, "2"], ["dance"], [],
                          ["up", name, "2", "--rate", "1gbit", "--emulate", "loss=0.1"]):
            self.assertEqual(netlab(*arguments, check=None).returncode, USAGE, arguments)
        self.assertIn("netlab run", netlab("help").stdout)

    def test_tapnet_takes_only_what_it_can_do(self):
        def tapnet(*arguments):
            return subprocess.run([BIN / "tapnet", *arguments], capture_output=True, text=True, timeout=30)

        for wrong in ("loss=5", "loss=nan", "loss=", "cut=7", "cut=0.5", "delay=inf", "rate=-1", "seed=abc", "seed=", "what=1"):
            done = tapnet(wrong, "nowhere:eth0", "nowhere:eth1")
            self.assertEqual((done.returncode, done.stderr.split("\n")[0]), (USAGE, f"tapnet: {wrong}: Invalid argument"))
        self.assertEqual(tapnet().returncode, USAGE)
        self.assertIn("keys: delay", tapnet("--help").stdout)
        self.assertEqual(tapnet("seed=7", "loss=0.5", "nowhere:eth0", "nowhere:eth1").returncode, 1)  # only the places are wrong


class OuroRun(LabCase):
    def test_ouro_run_starts_ranks_on_the_hosts(self):
        script = "echo $OURO_RANK $OURO_HOSTID $OURO_RENDEZVOUS $(ip -br -4 address show eth0)"
        done = netlab("run", self.name, "3", "--", "sh", "-c",
                      f'"{BIN}/ouro-run" -H $NETLAB_HOSTS --launch-agent "$NETLAB_AGENT" sh -c \'{script}\'')
        lines = sorted(done.stdout.splitlines())
        self.assertEqual(len(lines), 3, done.stdout + done.stderr)
        for i, line in enumerate(lines):
            _, rank, host, rendezvous, _, _, address = line.split()
            self.assertEqual((rank, host, address), (str(i), f"{self.name}-{i}", f"10.77.0.{i + 1}/24"))
            self.assertEqual(rendezvous.rsplit(":", 1)[0], "10.77.0.1")

    def test_commands_of_the_papers_work_as_printed(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        papers = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
        commands = [c.replace("\n", " ") for paper in papers
                    for c in re.findall(r"(?:^|`)(netlab run (?:[^`\n]|\n(?!\n|```))*)", paper.read_text(), re.M)]
        commands = [c for c in commands if "ouro-run" in c]
        self.assertTrue(commands)
        self.name = "lab"  # the name that the documents use
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        for command in commands:
            done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=55, env=env)
            self.assertEqual(done.returncode, 0, command + done.stdout + done.stderr)
            ranks = int(re.search(r"-n (\d+)", command)[1])
            self.assertEqual(done.stdout.count("#  Rank "), ranks, command + done.stdout + done.stderr)

    def test_ouro_run_names_hosts_that_cannot_meet(self):
        netlab("up", self.name, "2")
        netlab("exec", self.name, "1", "ip", "link", "set", "eth0", "down")
        n = self.name
        done = subprocess.run([BIN / "ouro-run", "-H", f"{n}-0,{n}-1", "--launch-agent", "ip netns exec {host}", "true"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"no address of host {n}-0 is reached by all others", done.stderr)


class NotRoot(unittest.TestCase):
    def test_says_so_and_skips(self):
        other = ["setpriv", "--reuid=65534", "--clear-groups"] if os.getuid() == 0 else []
        done = subprocess.run([*other, NETLAB, "up", "nobody", "2"], capture_output=True, text=True, timeout=30)
        if other and done.returncode != CANNOT and "ermission denied" in done.stderr:
            self.skipTest("this system allows no other user to read the script")
        self.assertEqual(done.returncode, CANNOT)
        self.assertIn("only root", done.stderr)


if __name__ == "__main__":
    sys.exit(exit_code(unittest.main(verbosity=2, exit=False).result))
