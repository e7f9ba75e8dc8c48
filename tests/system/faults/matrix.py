# The fault matrix: runs its cells one after the other, prints a line for each, and can write a table of all. Usage:
# matrix.py BIN [--short] [--only REGEX] [--minutes M] [--markdown FILE]. Exit code 1 if a cell is not met, 77 if none
# can run on this machine.
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cells import Cell, Known, Missing, Unmet, lab  # noqa: E402
from joins import JoinCell  # noqa: E402
from rows import JOINS, NOT_DONE, ROWS  # noqa: E402
from samples import SAMPLES  # noqa: E402

NETWORKS = {"none": None, "bridge": [], "emulated": ["--emulate", "seed=5"]}
HOSTS = 3


def all_cells():
    for rows, kind in ((ROWS, Cell), (JOINS, JoinCell)):
        for row in rows:
            for way in row.ways.split():
                for phase in row.phases.split():
                    yield kind(row, way, phase)
    yield from SAMPLES


def network_of(cell):
    return "none" if cell.way == "shm" or cell.row.do.startswith("hosts_") else cell.row.network


def processes_of(job):
    """Processes of the job of this name, including forked children, without this program's own zombies."""
    found = []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"OURO_JOB_ID={job}\0".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def run(cell):
    """Runs a cell. Returns its verdict (met, not met, known, cannot) with details."""
    before, begin, why = len(os.listdir("/proc/self/fd")), time.monotonic(), ""
    try:
        cell.run()
        verdict = "met"
        left = {"descriptors": n} if (n := len(os.listdir("/proc/self/fd")) - before) > 0 else {}
        if names := [n for n in os.listdir("/dev/shm") if cell.job and cell.job in n]:
            left["names in /dev/shm"] = names
        # Children that were forked on purpose end by themselves soon.
        if cell.job and not lab.until(lambda: not processes_of(cell.job), 5):
            left["processes"] = processes_of(cell.job)
        if left:
            raise Unmet(f"something is left: {left}")
        if cell.row.known:
            cell.note = f"met, though docs/limits.md says: {cell.row.known}"
    except Missing as e:
        verdict, why = "cannot", str(e)
    except (Unmet, OSError, subprocess.SubprocessError) as e:
        verdict, why = ("known" if cell.row.known or isinstance(e, Known) else "not met"), str(e)
    return {"name": cell.name(), "title": cell.row.title, "expected": cell.expected(), "verdict": verdict, "took": cell.took,
            "note": cell.note or cell.row.known * (verdict == "known"), "why": why, "seconds": time.monotonic() - begin}


def show(one):
    took = "" if one["took"] is None else f"{one['took'] * 1e3:8.0f} ms"
    first = one["why"].split("\n")[0][:150]
    print(f"{one['verdict']:8} {one['name']:22} {one['title'][:52]:53} {one['expected'][:60]:61} {took} {one['note']}"
          f"{': ' if one['note'] and first else ''}{first}", flush=True)
    if one["verdict"] == "not met":
        print(one["why"][:20000], file=sys.stderr, flush=True)


def cells_of(network, options):
    for cell in all_cells():
        if network_of(cell) != network or (options.short and not cell.row.short):
            continue
        if re.search(options.only, f"/{cell.name()}/ {cell.row.title}"):
            yield cell


def inside(options):
    """Runs the cells of one network, in the lab or on one host, and appends their results to options.results."""
    for cell in cells_of(options.network, options):
        if time.monotonic() > options.until:
            one = {"name": cell.name(), "title": cell.row.title, "expected": cell.expected(), "verdict": "no time", "took": None,
                   "note": "", "why": "the time was over", "seconds": 0}
        else:
            one = run(cell)
        show(one)
        with open(options.results, "a") as file:
            file.write(json.dumps(one) + "\n")
        if cell.way != "shm" and network_of(cell) == "bridge":
            for h in range(HOSTS):  # restores what the next cell expects
                lab.cable(h, "up")
        if network_of(cell) == "emulated":
            clean = "delay=0 jitter=0 loss=0 dup=0 reorder=0 corrupt=0 rate=0 cut=0 maxlen=0"
            subprocess.run([lab.NETLAB, "ctl", lab.NAME, "set * * " + clean], capture_output=True, timeout=20)


def table(results):
    """A Markdown table: one row per fault, one column per transport, phases within a cell."""
    ways = ("shm", "tcp", "ucx", "tls")
    lines = ["| fault | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    titles = {}
    for one in results:
        fid, way, phase = one["name"].split("/")
        titles.setdefault((fid, one["title"]), {}).setdefault(way, []).append((phase, one))
    short = {"met": "", "known": "not met", "not met": "**not met**", "cannot": "not done", "no time": "no time"}
    for (fid, title), by_way in titles.items():
        texts = []
        for way in ways:
            each = [f"{phase} {short[one['verdict']]}"
                    f"{'' if one['took'] is None or one['verdict'] != 'met' else format(one['took'] * 1e3, '.0f') + ' ms'}".strip()
                    for phase, one in by_way.get(way, [])]
            texts.append("<br>".join(each) or "-")
        lines.append(f"| {fid} {title} | " + " | ".join(texts) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default=".")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--markdown")
    parser.add_argument("--network", choices=NETWORKS)
    parser.add_argument("--results")
    parser.add_argument("--until", type=float)
    options = parser.parse_args()
    if options.network:
        return inside(options)
    results_file = pathlib.Path(f"/tmp/ouro-matrix-{os.getpid()}.jsonl")
    until = time.monotonic() + options.minutes * 60
    for network, arguments in NETWORKS.items():
        if not any(True for _ in cells_of(network, options)):
            continue
        me = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--network", network, "--results", str(results_file),
              "--until", str(until)]
        command = me if arguments is None else [lab.NETLAB, "run", f"m{os.getpid()}", str(HOSTS), *arguments, "--", *me]
        done = subprocess.run(command)
        if done.returncode == 77:
            print(f"SKIP: this system allows no labs: cells over the network {network}")
        elif done.returncode != 0:
            print(f"the cells over the network {network} have ended with {done.returncode}")
            return 1
    results = [json.loads(line) for line in results_file.read_text().splitlines()] if results_file.exists() else []
    results_file.unlink(missing_ok=True)
    counts = {v: sum(one["verdict"] == v for one in results) for v in ("met", "not met", "known", "cannot", "no time")}
    print(f"\n{len(results)} cells: " + ", ".join(f"{n} {v}" for v, n in counts.items() if n))
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    if f"m{os.getpid()}-" in names:
        print("something is left: namespaces")
        return 1
    if not options.short:
        for what, why in NOT_DONE.items():
            print(f"not done: {what}: {why}")
    if options.markdown:
        pathlib.Path(options.markdown).write_text("\n".join(table(results)) + "\n")
    return 77 if not counts["met"] and not counts["not met"] else int(counts["not met"] > 0)


if __name__ == "__main__":
    sys.exit(main())
