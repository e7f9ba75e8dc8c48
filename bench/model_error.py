#!/usr/bin/env python3
"""Compares the cost model's prediction for each algorithm with a measurement.

Usage: bench/model_error.py [--build DIR] [--ranks N] [--rounds R] [--calibration FILE]

Without --calibration this host is calibrated first, and all runs are pinned to that record. A round measures every algorithm
of a collective, one after the other; the order is reversed every other round. Measured is what an application sees (method A
of bench/compare, by its harness): each rank rewrites its input, makes the call, and reads its output. Predictions are those
of ouro-sim. Printed: the median of the rounds, the prediction, their ratio, and how often each of these is within 5 % of the
fastest one measured: the model's fastest algorithm, the one that ouro chooses (it leaves the built-in table's only where
the model says that enough is saved), and the built-in table's. A measurement counts if the record holds before and after
it: a hypervisor moves processors from near to far and back. Run it on a machine that does nothing else.
Buffers are registered for zerocopy, else private, on 2 MiB pages. DIR needs the targets compare_ouro, ouro-perf, ouro-sim and
ouro-info.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ALGORITHMS = {"all_reduce": ("oneshot", "direct", "pull", "zerocopy"), "all_gather": ("direct", "pull", "zerocopy"),
              "reduce_scatter": ("direct", "pull", "zerocopy"), "broadcast": ("direct", "pull", "zerocopy"),
              "all_to_all": ("direct", "pull", "zerocopy")}
CLOSE = 1.05  # times the fastest one measured

SIZES = tuple((4 << 10) << 2 * i for i in range(5)) + (2 << 20, 4 << 20)  # 4 KiB to 4 MiB
# The heap is on 2 MiB pages and freed temporaries stay mapped, as in bench/compare.
PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Host:
    """Whether the distance of the processors is unchanged; joining with a kept record checks the same."""

    def __init__(self, build, record):
        self.command = [build / "bin/ouro-info", "--calibration", "--json"]
        self.record = pathlib.Path(record).read_text()
        self.home = tempfile.TemporaryDirectory()
        self.environment = {k: v for k, v in os.environ.items() if k != "OURO_CALIBRATION"} | {"XDG_CACHE_HOME": self.home.name}
        kept = []
        for _ in range(20):  # what other work has disturbed is not kept
            self.ask()
            kept = list(pathlib.Path(self.home.name).glob("ouro/*.json"))
            if kept:
                break
            time.sleep(0.5)
        if not kept:
            sys.exit("model_error.py: this host cannot be calibrated now: other work keeps its cores busy")
        self.kept = kept[0]

    def ask(self):
        return subprocess.run(self.command, env=self.environment, capture_output=True, text=True, timeout=30).stdout

    def holds(self):
        self.kept.write_text(self.record)
        said = self.ask()
        return bool(said) and json.loads(said) == json.loads(self.record)

    def wait(self, seconds=120):
        end = time.monotonic() + seconds
        while not self.holds():
            if time.monotonic() > end:
                sys.exit(f"model_error.py: the record has not held for {seconds} seconds")
            time.sleep(0.05)


def measured_on(host, *what, tries=20):
    for _ in range(tries):
        host.wait()
        out = measured(*what)
        if host.holds():
            return out
    sys.exit(f"model_error.py: the record did not hold through {tries} measurements")


def measured(build, record, ranks, collective, algorithm):
    """size -> microseconds of a call, without the application's own reads and writes"""
    buffers = "registered" if algorithm == "zerocopy" else "private"
    place = "in" if collective == "broadcast" else "out"
    environment = os.environ | PAGES | {"OURO_CALIBRATION": record, "OURO_ALGO": algorithm}
    with tempfile.TemporaryDirectory(prefix="compare-", dir="/dev/shm") as folder:
        points = pathlib.Path(folder) / "points"
        points.write_text("".join(f"{collective} {size} float32 {buffers} A {place}\n" for size in SIZES))
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:ranks]))
        command = [build / "bin/compare_ouro", "--points", points, "--directory", folder, "--ranks", str(ranks), "--cores", cores,
                   "--blocks", "5", "--block-ms", "8", "--seconds", "120"]
        processes = [subprocess.Popen([*command, "--rank", str(r)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True) for r in range(ranks)]
        said = [p.communicate() for p in processes]
    if any(p.returncode for p in processes):
        sys.exit(f"model_error.py: {collective} by {algorithm}: {said[0][1].strip() or said[-1][1].strip()}")
    found = [json.loads(line) for line in said[0][0].splitlines()]
    return {SIZES[f["point"]]: f["us"] for f in found if "us" in f}


def answers(command, environment):
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"model_error.py: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def predicted(build, record, ranks, collective, algorithms):
    """(algorithm, size) -> predicted microseconds"""
    found = answers([build / "bin/ouro-sim", collective, "--ranks", str(ranks), "--bytes", ",".join(map(str, SIZES)), "--algorithms",
                     ",".join(algorithms), "--cluster", record, "--json", "-"], {})
    return {(p["algorithm"], p["bytes"]): p["time_us"] for p in found["points"]}


def choices(build, calibration, ranks, collective, buffers):
    """size -> the algorithm that ouro chooses for private buffers on 2 MiB pages or for registered ones, by this record ("off":
    by the built-in table)"""
    out = {}
    found = answers([build / "bin/ouro-perf", collective, "--ranks", str(ranks), "-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "2",
                     "-n", "1", "-w", "0", "-c", "0", "--json", "--explain", "-R", "1" if buffers == "registered" else "0"],
                    {"OURO_CALIBRATION": calibration})
    by_reference = {"private": ("pull", "; pull where "),
                    "registered": ("zerocopy", "zerocopy where all buffers are registered")}[buffers]
    for row in found["results"]:
        out_of_place = row["explain"].split("In place:")[0]
        declined = "and input and output the same memory, as here they are not" in out_of_place
        out[row["size"]] = by_reference[0] if by_reference[1] in out_of_place and not declined else out_of_place.split()[0]
    return out


class Choices:
    """How often a choice is within CLOSE of the fastest, by who chose and for which buffers."""

    def __init__(self):
        self.close, self.lost = {}, []

    def judge(self, who, where, took, named):
        if named not in took:
            return
        near = took[named] <= CLOSE * min(took.values())
        self.close.setdefault(who, []).append(near)
        if not near:
            best = min(took, key=took.get)
            self.lost.append(f"{who}: {where}: {named} takes {took[named] / took[best]:.2f} times as long as {best}")

    def print(self):
        for who, near in sorted(self.close.items()):
            print(f"{who}: within 5 % of the fastest at {sum(near)} of {len(near)} sizes")
        print("\n".join(self.lost))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "build")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calibration")
    o = parser.parse_args()
    if not 2 <= o.ranks <= 64 or not 1 <= o.rounds <= 100:
        sys.exit("model_error.py: --ranks takes 2 to 64, --rounds 1 to 100")
    record = o.calibration
    if record is None:
        made = subprocess.run([o.build / "bin/ouro-info", "--calibration", "--json"], capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(f"model_error.py: {made.stderr.strip()}")
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as f:
            f.write(made.stdout)
        record = f.name
    host = Host(o.build, record)
    far = json.loads(host.record)["pairs"][-1]
    print(f"Cores {far['cpus'][0]} and {far['cpus'][1]} hand a line over in {far['handoff_ns']} ns.\n")
    print("| collective, bytes | algorithm | measured us | predicted us | predicted / measured |\n|---|---|---|---|---|", flush=True)
    errors, judged = [], Choices()
    for collective, algorithms in ALGORITHMS.items():
        rounds = []
        for r in range(o.rounds):
            order = algorithms if r % 2 == 0 else algorithms[::-1]
            rounds.append({a: measured_on(host, o.build, record, o.ranks, collective, a) for a in order})
        by = {who: {buffers: choices(o.build, calibration, o.ranks, collective, buffers) for buffers in ("private", "registered")}
              for who, calibration in (("chosen", record), ("table", "off"))}
        model = predicted(o.build, record, o.ranks, collective, algorithms)
        for size in SIZES:
            took = {a: statistics.median(r[a][size] for r in rounds) for a in algorithms}
            said = {a: model[a, size] for a in algorithms}
            if min(took.values()) <= 0:  # less than the noise of the loop that is subtracted
                continue
            for a in algorithms:
                errors.append(said[a] / took[a])
                print(f"| {collective}, {size} | {a} | {took[a]:.2f} | {said[a]:.2f} | {said[a] / took[a]:.2f} |", flush=True)
            for buffers, without in (("private", "zerocopy"), ("registered", "pull")):
                there = {a: t for a, t in took.items() if a != without}
                where = f"{collective}, {size}, {buffers}"
                judged.judge(f"model, {buffers}", where, there, min(there, key=said.get))
                for who, chosen in by.items():
                    judged.judge(f"{who}, {buffers}", where, there, chosen[buffers][size])
    errors.sort()
    factor = statistics.median(max(e, 1 / e) for e in errors)
    print(f"\npredicted / measured: median {statistics.median(errors):.2f}, middle half {errors[len(errors) // 4]:.2f} to "
          f"{errors[3 * len(errors) // 4]:.2f}; half of the predictions are right within a factor of {factor:.2f}")
    judged.print()
    if o.calibration is None:
        os.unlink(record)


if __name__ == "__main__":
    main()
