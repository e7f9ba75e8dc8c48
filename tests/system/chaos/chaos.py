# Chaos test: runs jobs one after the other, whose ranks are killed, stopped and cut off at random, until the time is
# up. The ranks themselves verify every result bit by bit (replay.cc); this program judges the failures that they
# report. Usage: chaos.py BIN [--seconds S] [--seed S] [--kind host|hosts|both] [--keep FOLDER]. `hosts` needs root.
# Exit code: 0 nothing found, 1 something found, 2 wrong usage, 77 cannot run on this machine.
import argparse
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hosts"))
import lab
import chaos_faults
import chaos_job
import chaos_leaks

HOSTS = 3
# A job on one host takes a fraction of a second; one over several hosts takes seconds, mostly waiting for
# the network.
TURNS = {"host": ("host",), "hosts": ("hosts",), "both": ("host", "host", "host", "hosts")}


def arguments():
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("bin")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=["host", "hosts", "both"], default="both")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the stories of jobs in which something was found")
    given = parser.parse_args()
    if not 1 <= given.seconds <= 86400:
        parser.error("--seconds takes 1 to 86400")
    return given


def enter_lab(seed):
    os.execv(lab.NETLAB, [lab.NETLAB, "run", f"c{os.getpid()}", str(HOSTS), "--emulate", f"seed={seed % 2**31}", "--",
                          sys.executable, *sys.argv])


def one_job(kind, seed, until, tally):
    draw = random.Random(seed)
    with chaos_job.ChaosJob(kind, seed, draw, tally) as job:
        chaos_faults.play(job, draw, until)
        job.finish()
    return job


def main():
    given = arguments()
    if given.kind != "host" and not lab.NAME:
        enter_lab(given.seed)
    tally = chaos_job.Tally()
    before = chaos_leaks.Surroundings()
    start = time.monotonic()
    until, shown, jobs = start + given.seconds, start, 0
    while time.monotonic() < until and len(tally.found) < 20:
        kind = TURNS[given.kind][jobs % len(TURNS[given.kind])]
        already = len(tally.found)
        job = one_job(kind, given.seed * 1_000_003 + jobs, until, tally)
        left = [f"leak: {what}" for what in chaos_leaks.Surroundings().more_than(before)]
        tally.leaks += len(left)
        tally.found += left
        jobs += 1
        for what in tally.found[already:]:
            print(f"FOUND in job {jobs} ({job.describe()}): {what}", flush=True)
        if len(tally.found) > already and given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"job-{job.seed}.log").write_text(job.whole_story())
        if time.monotonic() > shown + 60:
            shown = time.monotonic()
            print(f"{shown - start:6.0f} s, {jobs} jobs: {tally.text()}", flush=True)
    print(f"{time.monotonic() - start:.0f} s, seed {given.seed}, {jobs} jobs: {tally.text()}")
    for reason, many in sorted(tally.reasons.items()):
        print(f"  {many:7} x {reason}")
    if not tally.steps or not tally.kills:
        print("nothing was checked")
        return 1
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
