# Cells of the fault matrix in which ranks join or fail to join: which are refused, with which message, how soon. Used
# by matrix.py.
import re
import subprocess
import sys
import time

from cells import Cell, Missing, Unmet, lab


class JoinCell(Cell):
    """`do` names what is wrong; the row's `says` has to occur in the message of each rank that is refused."""

    def expected(self):
        if self.row.do.startswith("hosts_"):
            return "what the test of hosts expects"
        return f"{'|'.join(self.row.reasons) or 'joined'}{', ' + repr(self.row.says) if self.row.says else ''} within " \
               f"{self.bound():.2f} s"

    def run_in(self, job):
        self.since = time.monotonic()
        getattr(self, self.row.do)(job)

    def refused(self, job, ranks):
        """Checks that each of the ranks is refused for one of the row's reasons, within its time, with its text."""
        if not job.all_say("refused", ranks, self.bound() + 10):
            raise Unmet("not refused:\n" + job.story())
        self.took = max(r.first("refused")["t"] for r in ranks) - self.since
        for r in ranks:
            said = r.first("refused")
            if said["reason"] not in self.row.reasons or self.row.says not in said["message"]:
                raise Unmet(f"rank {r.rank}: {said['message']}\n" + job.story())
        if self.took > self.bound() + 0.5:
            raise Unmet(f"after {self.took:.2f} s\n" + job.story())
        job.end(10)

    def rest_joins(self, job, ranks):
        """Checks that the ranks that were not refused still wait for the right rank in place of the wrong one."""
        for r in ranks:
            if r.process.poll() is not None:
                raise Unmet(f"rank {r.rank} did not wait for the right one:\n" + job.story())

    def differ(self, job):
        """One rank has a different setting: all ranks are refused with a message that has the row's text."""
        job.start()
        self.refused(job, job.ranks)

    def one_is_refused(self, job):
        other = job.folder / "other"
        job.write_secret(other)
        v = self.victims[0]
        job.of_rank[v] = {k: x.replace("OTHER", str(other)) for k, x in self.row.odd.items()}
        job.start([r for r in range(job.size) if r != v])
        time.sleep(0.3)
        self.since = time.monotonic()
        job.start([v])
        self.refused_alone(job, v)

    def start_version(self, job, step):
        """The victim runs a build with another version of the protocol, the others run this one."""
        v = self.victims[0]
        job.start([r for r in range(job.size) if r != v])
        time.sleep(0.3)
        self.since = time.monotonic()
        job.program, usual = f"{job.program}_{step}", job.program
        job.start([v])
        job.program = usual
        return v

    def major(self, job):
        """The next major version is refused; both ends name both versions."""
        v = self.start_version(job, "major")
        if not job.all_say("refused", [job[v]], self.bound() + 10):
            raise Unmet("not refused:\n" + job.story())
        version = r"(?<![\d.])\d+\.0(?![\d.])"
        said = set(re.findall(version, job[v].first("refused")["message"]))
        heard = lambda: [line for r in job.but(v) for _, line in list(r.log) if set(re.findall(version, line)) >= said]
        if len(said) != 2 or not lab.until(heard, 1):
            raise Unmet("not both versions at both ends:\n" + job.story())
        self.refused_alone(job, v)

    def minor(self, job):
        """The next minor version joins: both ends use what both support."""
        job.arguments[0] = "running"
        v = self.start_version(job, "minor")
        if not job.all_say("ready"):
            raise Unmet("the job does not come together:\n" + job.story())
        self.took = job[v].first("joined")["seconds"]
        self.note = "time to join"
        time.sleep(0.3)
        job.stop()
        self.expect_end(job, job.ranks)

    def refused_alone(self, job, v):
        rest = job.but(v)
        bad = job[v]
        if not job.all_say("refused", [bad], self.bound() + 10):
            raise Unmet("not refused:\n" + job.story())
        said = bad.first("refused")
        self.took = said["t"] - self.since
        if said["reason"] not in self.row.reasons or self.row.says not in said["message"]:
            raise Unmet(said["message"] + "\n" + job.story())
        if self.took > self.bound() + 0.5:
            raise Unmet(f"after {self.took:.2f} s\n" + job.story())
        self.rest_joins(job, rest)
        bad.end(5)
        job.ranks.remove(bad)
        job.of_rank.pop(v, None)
        job.start([v])
        job.stop()
        self.expect_end(job, job.ranks)

    def twice(self, job):
        """Two processes claim the same rank: the job ends for all that have come, and both are named."""
        v = self.victims[0]
        job.start(range(job.size - 1))  # the last one is missing, so that the job has not formed
        time.sleep(0.5)
        self.since = time.monotonic()
        second = lab.Rank(v, job.place(v)[0], [job.program, *job.arguments], {**lab.CLEAN, **job.variables(v)})
        try:
            self.refused(job, [*job.ranks, second])
            for r in [*job.ranks, second]:
                said = r.first("refused")["message"]
                pids = [str(x.pid) for x in (job[v], second)]
                if not all(f"pid {pid})" in said for pid in pids):
                    raise Unmet(f"{said} does not name processes {pids}")
        finally:
            second.process.kill()
            second.end(5)

    def late(self, job):
        """After all ranks have joined, another process claims one of their ranks."""
        job.arguments[0] = "running"
        job.start()
        if not job.all_say("joined"):
            raise Unmet("the job does not come together:\n" + job.story())
        v = self.victims[0]
        self.since = time.monotonic()
        second = lab.Rank(v, job.place(v)[0], [job.program, *job.arguments], {**lab.CLEAN, **job.variables(v)})
        try:
            if not lab.until(lambda: second.first("refused"), self.bound() + 10):
                raise Unmet("the latecomer is not refused:\n" + second.story() + job.story())
            said = second.first("refused")
            self.took = said["t"] - self.since
            if said["reason"] not in self.row.reasons or self.row.says not in said["message"]:
                raise Unmet(said["message"])
        finally:
            second.process.kill()
            second.end(5)
        job.stop()
        self.expect_end(job, job.ranks)

    def missing(self, job):
        job.start([r for r in range(job.size) if r not in self.victims])
        self.refused(job, job.ranks)

    def few_descriptors(self, job):
        """One rank has a limit of too few descriptors, and may not raise it."""
        v = self.victims[0]
        job.start([r for r in range(job.size) if r != v])
        self.since = time.monotonic()
        command = ["prlimit", "--nofile=16:16", job.program, *job.arguments]
        job.ranks.append(lab.Rank(v, job.place(v)[0], command, {**lab.CLEAN, **job.variables(v)}))
        bad = job[v]
        if not job.all_say("refused", [bad], 10):
            raise Unmet("it joined, or hangs:\n" + job.story())
        said = bad.first("refused")
        self.took = said["t"] - self.since
        if said["reason"] not in self.row.reasons or self.row.says not in said["message"]:
            raise Unmet(said["message"])

    def hosts_test(self, case):
        done = subprocess.run([sys.executable, str(lab.pathlib.Path(__file__).resolve().parent.parent / "hosts" / "join_test.py"),
                               str(lab.BIN), case], env={k: v for k, v in lab.os.environ.items() if k != "NETLAB_NAME"},
                              capture_output=True, text=True, timeout=120)
        if done.returncode == 77:
            raise Missing("network namespaces cannot be made")
        self.took = time.monotonic() - self.since
        self.note = f"hosts.{case}, whole"
        if done.returncode != 0:
            raise Unmet(done.stdout + done.stderr)

    def hosts_garbage(self, job):
        self.hosts_test("Garbage")

    def hosts_crowd(self, job):
        self.hosts_test("Crowd")

    def hosts_silent(self, job):
        self.hosts_test("Silent")

    def asked(self, job):
        """Programs that are no ranks connect to the rendezvous while rank 0 waits there."""
        job.start([0])
        if not lab.until(lambda: f":{lab.PORT}" in lab.on(0, "ss", "-Htln")):
            raise Unmet(job.story())
        self.asks(job)
        job.start(range(1, job.size))
        job.stop()
        self.expect_end(job, job.ranks)
        self.took = job[1].first("joined")["seconds"]
        self.note = "time to join"
