# Two hosts over a slow link, and over a fast one: all-reduces compared with the least bytes and the link's rate, messages.
# Usage: hosts.py BIN [MIB [ROUNDS]]. Needs root, and what netlab needs; prints tables.
import json
import os
import pathlib
import subprocess
import sys

if {"-h", "--help"} & set(sys.argv[1:]):
    sys.exit(print("usage: hosts.py [BIN [MIB (64) [ROUNDS (5)]]]   (as root; BIN: the folder of netlab and bench_hosts)"))
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bin").resolve()
MIB = int(sys.argv[2]) if len(sys.argv) > 2 else 64
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 5
RATE = 125e6  # bytes a second of 1 Gbit/s
RANKS = 4     # of each host


def inside(ranks, what, size, rounds):
    """The lines of the hosts' first ranks, by rank, or an error text."""
    hosts = ",".join(f"{h}:{ranks}" for h in os.environ["NETLAB_HOSTS"].split(","))
    command = [BIN / "ouro-run", "-H", hosts, "--launch-agent", os.environ["NETLAB_AGENT"], "--no-prefix",
               BIN / "bench_hosts", what, str(size), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(lines, key=lambda line: line["rank"])


def slow():
    size = MIB << 20
    least = size  # two hosts: each sends half of the buffer twice, as a partial sum and as a result
    print(f"{MIB} MiB of float32, 2 hosts of {RANKS} ranks, 1 Gbit/s; median of {ROUNDS}")
    print(f"{'algorithm':16}{'seconds':>9}{'sent/least':>12}{'of the rate':>13}")
    for algorithm in ("hierarchy", "ring", "hierarchy_tree", "chain", "halving"):
        lines = inside(RANKS, algorithm, size, ROUNDS)
        if isinstance(lines, str):
            print(f"{algorithm:16}{lines}")
            continue
        sent = max(line["sent"] for line in lines)
        seconds = max(line["seconds"] for line in lines)
        print(f"{algorithm:16}{seconds:9.3f}{sent / least:12.3f}{least / seconds / RATE:12.0%}")


def fast():
    print("a link without a limit; 1 rank on each of 2 hosts; medians")
    print(f"{'':16}{'8 B':>12}{'64 KiB':>12}{'16 MiB':>12}{'GB/s':>8}")
    for what in ("message", "hierarchy"):
        row = [inside(1, what, size, rounds) for size, rounds in ((8, 1000), (65536, 200), (16 << 20, 10))]
        if any(isinstance(lines, str) for lines in row):
            print(f"{what:16}", row)
            continue
        times = [lines[0]["seconds"] for lines in row]
        print(f"{what:16}" + "".join(f"{t * 1e6:9.1f} us" for t in times) + f"{(16 << 20) / times[2] / 1e9:8.2f}")


if "NETLAB_NAME" in os.environ:
    {"slow": slow, "fast": fast}[os.environ["HOSTS_TABLE"]]()
else:
    for table, rate in (("slow", ["--rate", "1gbit"]), ("fast", [])):
        subprocess.run([BIN / "netlab", "run", f"b{os.getpid()}", "2", *rate, "--", sys.executable, *sys.argv],
                       env={**os.environ, "HOSTS_TABLE": table}, check=True)
