# One cell of the fault matrix: starts a job, injects the fault of its row in its phase, and judges what every
# survivor observes: the rank, the reason, the time; that the survivors shrink and compute; that nothing leaks. Used
# by matrix.py.
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hosts"))
import lab  # noqa: E402
import sockets  # noqa: E402

RANK = str(lab.BIN / "faults_rank")
SLACK = 0.5  # seconds that busy cores may add to a time limit
SILENT = 1.5  # seconds of silence after which jobs here give up a rank; row D2 times the default of 5
L0, L1, L2, L3, R1, R2 = 1.0, 0.5, SILENT + 0.25, 1.0, 1.0, 2.0
ENV = {"shm": {}, "tcp": {}, "ucx": {"OURO_FABRIC": "ucx"}, "tls": {"OURO_SECURITY": "tls"}}
PHASES = ("init", "group", "running", "idle", "teardown")
GROUP_OP = 3  # first operation of the phase `group`; the ones before it are operations of the world group


@dataclasses.dataclass
class Row:
    """A fault. `do` names the action on a running job (a method of Cell), `env` and `odd` are environment variables of all
    ranks and of the victims, `fault` is the value of OURO_FAULT, where {at} stands for the position of the phase."""
    id: str
    title: str
    ways: str
    phases: str = "running"
    do: str = ""
    fault: str = ""
    env: dict = dataclasses.field(default_factory=dict)
    odd: dict = dataclasses.field(default_factory=dict)
    victims: tuple = (-1,)  # -1: the last rank
    reasons: tuple = ()  # that survivors may report; none: the fault must not be noticed
    dead: bool = True  # the victims are excluded by the shrink
    within: float = L0
    far: float = 0.0  # the same limit between hosts, if it differs
    end: tuple = ()  # reasons with which a living victim may end
    says: str = ""  # pattern that a message or a warning of a survivor must contain
    victim_says: str = ""  # pattern that a message or a warning of a victim must contain
    never: str = ""  # pattern that no warning of any rank may contain, because it would be false
    shapes: dict = dataclasses.field(default_factory=dict)  # ranks per host by transport, if not the usual ones
    network: str = "bridge"  # or emulated
    count: int = 1000
    seconds: float = 0.0  # how long a job that must notice nothing is watched
    short: bool = False  # is in the subset that runs with all tests
    known: str = ""  # the known limit that keeps the row from being met
    loose: bool = False  # any rank may be named: several are gone, or both sides blame each other
    limits: dict = dataclasses.field(default_factory=dict)  # OURO_* variables in addition to the usual ones

    def shape(self, way):
        return self.shapes.get(way) or self.shapes.get("net" if way != "shm" else "") or \
            ((4,) if way == "shm" else (2, 2))


class Unmet(Exception):
    pass


class Known(Unmet):
    """Not met because of a limit that docs/limits.md names."""


class Missing(Exception):
    """The cell cannot run on this machine."""


class Cell:
    def __init__(self, row, way, phase):
        self.row, self.way, self.phase = row, way, phase
        self.since = self.took = None
        size = sum(row.shape(way))
        self.victims = [v % size for v in row.victims]
        self.note, self.job = "", ""

    def name(self):
        return f"{self.row.id}/{self.way}/{self.phase}"

    def expected(self):
        r = self.row
        if not r.reasons:
            return "nothing is noticed"
        who = ",".join(map(str, self.victims))
        return f"{'|'.join(r.reasons)} of rank {who} within {self.bound():.2f} s" + ("; shrink" if self.phase != "init" else "")

    def bound(self):
        return self.row.far if self.way != "shm" and self.row.far else self.row.within

    def variables(self):
        r = self.row
        env = {"OURO_SILENT_WARN": "1", "OURO_SILENT_FAIL": str(SILENT), "OURO_DEADLINE": "20", "OURO_JOIN_DEADLINE": "20",
               **ENV[self.way], **r.env, **r.limits}
        places = {"init": "at=join", "group": f"op={GROUP_OP}", "running": "op=50", "idle": "op=2", "teardown": "at=close"}
        if r.fault:
            env["OURO_FAULT"] = ";".join(f.format(at=places[self.phase], v=v) for f in r.fault.split(";")
                                         for v in (self.victims if "{v}" in f else [0]))
        return env

    # ---- actions on a running job ----

    def kill(self, job):
        time.sleep(random.random() * 0.05)
        self.since = time.monotonic()
        for v in self.victims:
            os.kill(job[v].pid, signal.SIGKILL)

    def stop(self, job):
        self.since = time.monotonic()
        for v in self.victims:
            os.kill(job[v].pid, signal.SIGSTOP)

    def pauses(self, job):
        self.since = time.monotonic()
        for pause in (0.1, 0.3, 0.6, 0.9):
            for v in self.victims:
                os.kill(job[v].pid, signal.SIGSTOP)
            time.sleep(pause)
            for v in self.victims:
                os.kill(job[v].pid, signal.SIGCONT)
            time.sleep(0.1)

    def unplug(self, job, seconds=0.0):
        self.since = time.monotonic()
        h = job[self.victims[0]].host
        lab.cable(h, "down")
        if seconds:
            time.sleep(seconds)
            lab.cable(h, "up")

    def flap(self, job):
        self.unplug(job, 1.0)

    def long_flap(self, job):
        self.unplug(job, SILENT + 1.5)

    def clocks(self, job):
        """The hosts' clocks differ from the start; verifies that with the times that the ranks report."""
        self.since = time.monotonic()
        said = [r.first("ready")["t"] for r in job.ranks]
        if max(said) - min(said) < int(self.row.env["FAULTS_CLOCK"]) / 2:
            raise Unmet(f"the clocks are alike: {said}")

    def reset(self, job):
        self.since = time.monotonic()
        for control in (False, True):
            try:
                sockets.reset(job[self.victims[0]].pid, control, 2)
            except OSError as e:
                raise Missing(f"connections cannot be reset from outside here: {e}")
            time.sleep(0.4)

    def network(self, job):
        """Changes the emulated network as the row's odd["NET"] says, a list separated by semicolons."""
        self.since = time.monotonic()
        for one in self.row.odd["NET"].split(";"):
            done = subprocess.run([lab.NETLAB, "ctl", lab.NAME, "set " + one], capture_output=True, text=True, timeout=20)
            if done.returncode != 0:
                raise Unmet(done.stderr)

    def asks(self, job):
        """Programs that are no ranks talk to the rendezvous: a web client, a TLS client."""
        self.since = time.monotonic()
        where = f"{lab.address(0)}:{lab.PORT}"
        subprocess.run(lab.inside(1, "curl", "-s", "-m", "3", f"http://{where}/metrics"), capture_output=True, timeout=20)
        subprocess.run(lab.inside(1, "timeout", "3", "openssl", "s_client", "-connect", where), input=b"",
                       capture_output=True, timeout=20)

    # ---- a job and its verdict ----

    def run(self):
        r = self.row
        if r.shape(self.way) == ():
            raise Missing("not of this transport")
        if "FAULTS_CLOCK" in r.env and subprocess.run(["unshare", "-T", "true"], capture_output=True).returncode != 0:
            raise Missing("no namespace for time")
        with lab.Job(r.shape(self.way), [self.phase, r.count, "STOP"], env=self.variables(), program=RANK) as job:
            self.job = job.name
            for v in self.victims:
                job.of_rank[v] = {k: x for k, x in r.odd.items() if k.startswith(("FAULTS_", "OURO_"))}
            self.run_in(job)

    def run_in(self, job):
        r = self.row
        if self.phase == "init" and r.do == "kill":
            return self.run_init(job)
        job.start()
        if not job.all_say("ready", seconds=20) and not r.fault:
            raise Unmet("the job does not come together:\n" + job.story())
        if self.phase == "running":
            lab.until(lambda: False, 0.1)
        if r.do:
            getattr(self, r.do)(job)
        if not r.reasons:
            return self.expect_nothing(job)
        survivors = job.but(*self.victims)
        if not job.all_say("failed", survivors, self.bound() + 12) and self.phase != "teardown":
            raise Unmet("not noticed in time:\n" + job.story())
        self.measure(job, survivors)
        self.expect_reasons(job, survivors)
        self.expect_survivors(job, survivors)

    def run_init(self, job):
        """The victim dies while the others wait for a rank that has not joined yet."""
        last = next(r for r in range(1, job.size) if r not in self.victims)  # joins last; on another host than the victim
        job.start([r for r in range(job.size) if r != last])
        time.sleep(1.0)
        self.kill(job)
        survivors = job.but(*self.victims)
        if not job.all_say("refused", survivors, self.bound() + 3):
            time.sleep(0.2)
            job.start([last])
            survivors = job.but(*self.victims)
            if not job.all_say("refused", survivors, self.bound() + 12):
                raise Unmet("nobody says that a rank died:\n" + job.story())
            self.note = "said once the last rank had come"
        self.took = max(s.first("refused")["t"] for s in survivors) - self.since
        for s in survivors:
            said = s.first("refused")
            if said["reason"] not in self.row.reasons:
                raise Unmet(f"rank {s.rank}: {said['message']}\n" + job.story())
        if self.took > self.bound() + SLACK:
            raise Unmet(f"after {self.took:.2f} s\n" + job.story())

    def measure(self, job, survivors):
        if self.since is None:  # the time is in the log or the events of a victim
            said = [t for v in self.victims if (t := (job[v].logged("OURO_FAULT: rank") or (None,))[0])]
            said += [e["t"] for v in self.victims for e in job[v].all("acts")]
            self.since = min(said) if said else None
        if self.since is None:
            raise Unmet("the fault did not happen:\n" + job.story())
        heard = [s.first("failed")["t"] for s in survivors if s.first("failed")]
        self.took = max(heard) - self.since if heard else None  # None: no rank had to wait for a victim
        if heard and self.took > self.bound() + SLACK:
            raise Unmet(f"after {self.took:.2f} s\n" + job.story())

    def expect_reasons(self, job, survivors):
        for s in survivors:
            said = s.first("failed")
            if not said:
                continue  # it had nothing left to wait for
            if said["reason"] not in self.row.reasons:
                raise Unmet(f"rank {s.rank} says {said['message']}\n" + job.story())
            if not self.row.loose and said.get("rank") not in self.victims:
                raise Unmet(f"rank {s.rank} names another rank: {said['message']}\n" + job.story())
        for says, ranks in ((self.row.says, survivors), (self.row.victim_says, [job[v] for v in self.victims])):
            if says and not any(r.logged(says) or re.search(says, e["message"]) for r in ranks
                                for e in r.all("failed") or [{"message": ""}]):
                raise Unmet(f"nobody says '{says}'\n" + job.story())
        self.expect_silence(job)

    def expect_silence(self, job):
        for r in job.ranks if self.row.never else ():
            if said := r.logged(self.row.never):
                raise Unmet(f"rank {r.rank} says '{said[1]}'\n" + job.story())

    def expect_survivors(self, job, survivors):
        """The survivors shrink within R2 of the failure, compute exact results, leave, and leak nothing."""
        size = job.size - (len(self.victims) if self.row.dead else 0)
        together = survivors if self.row.dead else job.ranks
        if self.phase != "teardown":
            done = lambda: all(r.all("exact") and r.all("exact")[-1]["size"] == size for r in together)
            if not lab.until(done, 15):
                raise Unmet(f"no exact all-reduce of {size} ranks\n" + job.story())
            slowest = max(e["seconds"] for r in together for e in r.all("shrunk")[-1:])
            if slowest > R2 + SLACK:
                raise Unmet(f"shrink took {slowest:.2f} s\n" + job.story())
        for v in self.victims:
            if "stop" not in (self.row.do, self.row.fault[:4]):
                continue
            os.kill(job[v].pid, signal.SIGCONT)
            lab.until(lambda: job[v].process.poll() is not None, 10)
        job.stop()
        self.expect_end(job, together)
        for v in self.victims if self.row.end else ():
            said = [e.get("reason") for e in job[v].events if e["event"] in ("failed", "unshrunk")]
            if not set(said) & set(self.row.end):
                raise Unmet(f"rank {v} ends with {said}\n" + job.story())

    def expect_nothing(self, job):
        time.sleep(self.row.seconds)
        if self.row.odd.get("NET"):  # keeps the network fault active for a while
            lab.until(lambda: any(r.process.poll() is not None for r in job.ranks), max(2.0, self.row.seconds))
        job.stop()
        self.expect_end(job, job.ranks, 40)
        for r in job.ranks:
            if r.all("failed") or r.first("refused"):
                raise Unmet(f"rank {r.rank} noticed it\n" + job.story())
        if self.row.says and not any(r.logged(self.row.says) for r in job.ranks):
            raise Unmet(f"nobody says '{self.row.says}'\n" + job.story())
        self.expect_silence(job)
        self.took = max((r.first("stopped") or {"longest": 0})["longest"] for r in job.ranks)
        self.note = "longest round"

    def expect_end(self, job, ranks, seconds=20):
        codes = job.end(seconds)
        for r in ranks:
            if codes[r.rank] != 0:
                raise Unmet(f"rank {r.rank} ends with {codes[r.rank]}\n" + job.story())
            holds = r.first("holds") or {}
            left = {k: n for k, n in holds.items() if k not in ("event", "t") and n > 0}
            if left and self.way == "ucx" and "peer-dead" not in self.row.reasons:
                raise Known(f"UCX's worker stays once a connection was made anew (docs/limits.md): {left}")
            if left:
                raise Unmet(f"rank {r.rank} leaves {left}\n" + job.story())
