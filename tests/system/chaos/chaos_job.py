# A chaos job and its verdict: which ranks live, whether they make progress, which failures they may report. Used by
# chaos.py and chaos_faults.py.
import collections
import contextlib
import os
import signal
import subprocess
import time

import lab

HANG = 15.0  # seconds without a step: the slowest class of failures takes 5; 10 more mean no progress
SILENT_FAIL = 2.0
PROGRAM = str(lab.BIN / "chaos_rank")
SHAPES = {"host": [(8,), (6,), (4,), (3,), (2,)],
          "hosts": [(2, 2, 2), (3, 2, 1), (2, 2), (1, 1, 1), (3, 3), (2, 1, 2)]}
# Allowed reasons for a failed operation, and for a rank that ends without the others. On one host, reasons that only
# a network or silence can cause are not allowed.
FAILED = {"host": {"peer-dead"},
          "hosts": {"peer-dead", "peer-unresponsive", "link-lost", "data-corrupt", "fenced", "no-quorum"}}
ENDED = {"host": set(), "hosts": {"fenced", "no-quorum", "peer-unresponsive", "link-lost", "peer-dead"}}
UNJOINED = {"peer-dead", "never-joined", "peer-unresponsive", "refused", "link-lost", "data-corrupt"}


class Tally:
    """Sums over all jobs."""

    def __init__(self):
        self.kills = self.stops = self.network = self.steps = self.wrong = self.hangs = self.leaks = self.shrinks = 0
        self.found, self.reasons = [], collections.Counter()

    def text(self):
        return (f"{self.kills} kills, {self.stops} stops, {self.network} network faults, {self.shrinks} shrinks, "
                f"{self.steps} steps checked, {self.wrong} wrong, {self.hangs} hangs, {self.leaks} leaks, "
                f"{len(self.found)} found")


class ChaosRank(lab.Rank):
    def __init__(self, *arguments):
        self.killed, self.step_time, self.members, self.checked = False, 0.0, None, 0
        super().__init__(*arguments)

    def hear(self, event):
        if event["event"] == "at":
            self.step_time, self.checked = time.monotonic(), event["checked"]
        if event["event"] == "shrunk":
            self.members = set(event["members"])
            self.step_time = 0.0
        super().hear(event)

    def lives(self):
        return not self.killed and self.process.poll() is None


class ChaosJob(lab.Job):
    kind = ChaosRank

    def __init__(self, place, seed, draw, tally):
        self.seed, self.place_kind, self.tally, self.notes = seed, place, tally, []
        self.joined_all = self.asked_to_stop = self.disturbed = False
        self.early = draw.random() < 0.1  # a rank dies while the ranks join
        shape = draw.choice(SHAPES[place])
        env = {"OURO_SILENT_WARN": "1", "OURO_SILENT_FAIL": str(SILENT_FAIL), "OURO_DEADLINE": "60"}
        if self.early:
            env["OURO_JOIN_DEADLINE"] = "5"
        if place == "hosts":
            env["OURO_SECURITY"] = draw.choice(["auth", "auth", "tls"])
            env["OURO_TCP_CONNECTIONS"] = draw.choice(["1", "1", "3"])
        super().__init__(shape, [seed, "STOP"], env=env, program=PROGRAM)
        self.began = time.monotonic()
        self.start()

    def describe(self):
        return f"seed {self.seed}, {self.place_kind} {'+'.join(map(str, self.shape))}, {self.env}"

    def note(self, text):
        self.notes.append(f"{time.monotonic():.3f} {text}")

    def alive(self):
        return [r for r in self.ranks if r.lives()]

    def signal(self, rank, number):
        """Signals a process that this program has started and not yet waited for, so its pid cannot have been reused."""
        self.note(f"rank {rank.rank} (pid {rank.pid}) gets {signal.Signals(number).name}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, number)

    def kill(self, rank):
        rank.killed = True
        self.tally.kills += 1
        self.signal(rank, signal.SIGKILL)

    def found(self, what):
        self.tally.found.append(what)
        self.note(f"FOUND {what}")

    def join(self):
        """Waits until all ranks have joined. False: the job hangs, or no rank is left."""
        self.joined_all = self.wait(lambda r: r.first("joined"), "has not joined")
        return self.joined_all and bool(self.alive())

    def settle(self):
        """Waits until each living rank has completed a step after this call, in a group without the killed ranks."""
        since, dead = time.monotonic(), {r.rank for r in self.ranks if r.killed}
        return self.wait(lambda r: r.step_time > since and not (r.members or set()) & (dead if r.members else set())
                         and (r.members or not dead), "makes no progress")

    def wait(self, done, what):
        limit = time.monotonic() + HANG
        while True:
            waiting = [r for r in self.alive() if not done(r)]
            if not waiting:
                return True
            if time.monotonic() > limit:
                self.tally.hangs += 1
                self.found(f"hang: {', '.join(f'rank {r.rank}' for r in waiting)} {what} within {HANG:.0f} s")
                for r in self.alive():
                    self.stacks(r)
                    r.killed = True
                    self.signal(r, signal.SIGKILL)
                return False
            time.sleep(0.004)

    def stacks(self, rank):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(["gdb", "-p", str(rank.pid), "-batch", "-ex", "thread apply all bt 20"],
                                  capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
            self.notes.append(f"stacks of rank {rank.rank}:\n{done.stdout}")

    def finish(self):
        """Tells the remaining ranks to stop, waits for their end, and judges what they reported."""
        self.asked_to_stop = True
        self.note("the ranks are told to stop")
        self.stop()
        if self.joined_all:
            self.wait(lambda r: False, "does not end")
        codes = self.end(HANG)
        for r in self.ranks:
            if codes[r.rank] is None:
                self.tally.hangs += 1
                self.found(f"hang: rank {r.rank} does not end")
            self.tally.steps += r.checked
            self.judge(r, codes[r.rank])
        self.judge_membership()

    def judge(self, r, code):
        for e in r.all("failed") + r.all("unshrunk") + r.all("refused") + r.all("unclosed"):
            self.tally.reasons[f"{self.place_kind} {e['event']} {e['reason']}"] += 1
        self.tally.shrinks += len(r.all("shrunk"))
        self.tally.wrong += len(r.all("wrong"))
        for e in r.all("wrong"):
            self.found(f"wrong bits: rank {r.rank}: {e['message']}")
        for e in r.all("failed"):
            if e["reason"] not in FAILED[self.place_kind]:
                self.found(f"rank {r.rank} fails with {e['reason']}: {e['message']}")
        for e in r.all("unshrunk"):
            if e["reason"] not in ENDED[self.place_kind] or not self.disturbed:
                self.found(f"rank {r.rank} cannot go on: {e['message']}")
        for e in r.all("refused"):
            if not self.early or e["reason"] not in UNJOINED:
                self.found(f"rank {r.rank} does not join: {e['message']}")
        for e in r.all("agreed"):
            if e["resume"] != e["next"]:
                self.found(f"rank {r.rank}: resume_seq is {e['resume']}, the first that not all have completed {e['next']}")
        for e in r.all("left"):
            more = {k: e[k] for k in ("descriptors", "threads", "segments") if e[k]}
            if more:
                self.tally.leaks += 1
                self.found(f"leak: rank {r.rank} has {more} more than before it joined")
        if not r.killed and code not in (0, 4, 5):
            self.found(f"rank {r.rank} ended with {code}")
        if code == 0 and not r.killed and not self.asked_to_stop:
            self.found(f"rank {r.rank} ended without being told to")

    def judge_membership(self):
        """Checks that no generation has two groups, and that every rank is a member of its group."""
        groups = {}
        for r in self.ranks:
            for e in r.all("shrunk"):
                groups.setdefault(e["generation"], set()).add(tuple(e["members"]))
                if r.rank not in e["members"]:
                    self.found(f"rank {r.rank} is in a group of others: {e}")
        for generation, members in groups.items():
            if len(members) > 1:
                self.found(f"generation {generation} has several memberships: {sorted(members)}")

    def whole_story(self):
        return "\n".join([self.describe(), *self.notes, self.story()])
