# The faults of a chaos job, drawn at random: deaths, pauses, and network faults. Used by chaos.py.
import contextlib
import signal
import subprocess
import time

import chaos_job
import lab
import sockets

SHORT, LONG = 0.9, chaos_job.SILENT_FAIL + 1.0  # seconds: too short to be noticed; long enough that silent ranks are given up


class Play:
    """Injects faults, and repairs each when its time has come."""

    def __init__(self, job, draw, until):
        self.job, self.draw, self.until, self.mending = job, draw, until, []

    def later(self, seconds, mend):
        self.mending.append((time.monotonic() + seconds, mend))

    def mend(self, wait=False):
        while self.mending:
            self.mending.sort(key=lambda m: m[0])
            rest = self.mending[0][0] - time.monotonic()
            if rest > 0 and not wait:
                return
            time.sleep(max(0.0, rest))
            self.mending.pop(0)[1]()

    # ---- deaths and pauses

    def kill_one(self):
        self.job.kill(self.draw.choice(self.job.alive()))

    def kill_some(self):
        alive = self.job.alive()
        for r in self.draw.sample(alive, min(len(alive) - 1, self.draw.randint(2, 3))):
            self.job.kill(r)
        if self.job.place_kind == "hosts":
            self.job.disturbed = True  # a whole host may be gone, which other hosts cannot prove

    def pause(self):
        r = self.draw.choice(self.job.alive())
        self.job.tally.stops += 1
        self.job.signal(r, signal.SIGSTOP)
        self.later(self.draw.uniform(0.02, SHORT), lambda: r.killed or self.job.signal(r, signal.SIGCONT))

    def pause_long(self):
        r = self.draw.choice(self.job.alive())
        self.job.tally.stops += 1
        self.job.disturbed = True
        self.job.signal(r, signal.SIGSTOP)
        self.later(LONG, lambda: r.killed or self.job.signal(r, signal.SIGCONT))

    # ---- the network

    def net(self, *what):
        for one in what:
            self.job.note(f"network: {one}")
            subprocess.run([lab.NETLAB, "ctl", lab.NAME, "set " + one], check=True, capture_output=True, timeout=20)

    def broken(self, seconds, begin, end):
        self.job.tally.network += 1
        self.job.disturbed = True
        self.net(*begin)
        self.later(seconds, lambda: self.net(*end))

    def host(self):
        return self.draw.randrange(len(self.job.shape))

    def cut(self, seconds):
        h = self.host()
        self.broken(seconds, [f"{h} * cut=1", f"* {h} cut=1"], [f"{h} * cut=0", f"* {h} cut=0"])

    def flap(self):
        self.cut(self.draw.uniform(0.05, SHORT))

    def partition(self):
        self.cut(LONG)

    def one_way(self):
        a, b = self.draw.sample(range(len(self.job.shape)), 2)
        self.broken(self.draw.choice([0.3, 0.8, LONG]), [f"{a} {b} cut=1"], [f"{a} {b} cut=0"])

    def loss(self):
        self.broken(self.draw.uniform(0.2, 1.0), [f"* * loss={self.draw.choice([0.001, 0.01, 0.05])}"], ["* * loss=0"])

    def damage(self):
        """Bit flips that pass TCP's checksum, which the network recomputes."""
        self.broken(self.draw.uniform(0.2, 1.0), ["* * fixup=1", f"* * corrupt={self.draw.choice([0.0005, 0.005])}"],
                    ["* * corrupt=0"])

    def delay(self):
        ms = self.draw.choice([5, 20, 80])
        self.broken(self.draw.uniform(0.2, 1.0), [f"* * delay={ms} jitter={ms / 2} reorder=0.1 dup=0.01"],
                    ["* * delay=0 jitter=0 reorder=0 dup=0"])

    def reset(self):
        """Sends an RST to both ends of one or more connections of a rank."""
        r = self.draw.choice(self.job.alive())
        self.job.tally.network += 1
        self.job.disturbed = True
        with contextlib.suppress(OSError):  # the rank has just ended
            ports = sockets.reset(r.pid, control=self.draw.random() < 0.5, many=self.draw.choice([1, 1, 100]))
            self.job.note(f"reset connections of rank {r.rank}: {ports}")


DEATHS = [(Play.kill_one, 8), (Play.kill_some, 1), (Play.pause, 3)]
WEIGHTS = {"host": DEATHS,
           "hosts": [(Play.kill_one, 5), (Play.kill_some, 1), (Play.pause, 2), (Play.pause_long, 0.5), (Play.flap, 4),
                     (Play.partition, 0.7), (Play.one_way, 1.5), (Play.loss, 1.5), (Play.damage, 1.5), (Play.delay, 1.5),
                     (Play.reset, 4)]}


def play(job, draw, until):
    """Injects faults until few ranks are left or the time is up; then repairs everything."""
    p = Play(job, draw, until)
    if job.early:
        time.sleep(draw.uniform(0, 0.4))
        p.kill_one()
    if not job.join() or not job.settle():
        return
    few = 1 if job.place_kind == "host" else 2
    faults, weights = zip(*WEIGHTS[job.place_kind])
    try:
        while len(job.alive()) > few and time.monotonic() < until:
            draw.choices(faults, weights)[0](p)
            if draw.random() < 0.3:  # the next fault overlaps this one
                time.sleep(draw.expovariate(1 / 0.03))
                p.mend()
                continue
            p.mend(wait=True)
            if not job.settle():
                return
            time.sleep(draw.expovariate(1 / 0.05))
    finally:
        p.mend(wait=True)
    job.settle()
