# Computes the share of each parser's lines (parsers.txt) that a run has reached, from llvm-cov's exports. Usage:
# coverage.py ROOT PARSERS FUNCTIONS.json LINES.lcov [--missed]. --missed lists the lines that were not reached. Exit
# code 1: less than GOAL of a parser.
import collections
import json
import pathlib
import re
import subprocess
import sys

GOAL = 0.95


def lines_of(lcov):
    """By file: how often each line with code was executed."""
    files, now = {}, None
    for line in pathlib.Path(lcov).read_text().splitlines():
        if line.startswith("SF:"):
            now = files.setdefault(line[3:], {})
        elif line.startswith("DA:"):
            number, count = line[3:].split(",")[:2]
            now[int(number)] = max(now.get(int(number), 0), int(count))
    return files


def functions_of(exported):
    """By file: (name, first line, last line) of its functions."""
    found = collections.defaultdict(list)
    for f in json.loads(pathlib.Path(exported).read_text())["data"][0]["functions"]:
        first = f["regions"][0]
        found[f["filenames"][first[5]]].append((f["name"].split(":")[-1], first[0], first[2]))
    names = sorted({n for all_of_file in found.values() for n, _, _ in all_of_file})
    plain = dict(zip(names, subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True,
                                           check=True).stdout.splitlines()))
    return {file: [(plain[n], a, b) for n, a, b in many] for file, many in found.items()}


def main():
    root, parsers, exported, lcov = sys.argv[1:5]
    lines, functions = lines_of(lcov), functions_of(exported)
    reached_in_all = total = below = 0
    print(f"{'lines':>6} {'reached':>8} {'':>7}  parser")
    for line in pathlib.Path(parsers).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        path, _, pattern = line.partition(" ")
        file = f"{root}/{path}"
        counts = lines.get(file, {})
        if pattern:
            ranges = [(a, b) for name, a, b in functions.get(file, []) if re.search(pattern, name)]
            counts = {n: c for n, c in counts.items() if any(a <= n <= b for a, b in ranges)}
        if not counts:
            sys.exit(f"{path}: no line of it was compiled")
        missed = sorted(n for n, c in counts.items() if c == 0)
        reached = len(counts) - len(missed)
        reached_in_all, total = reached_in_all + reached, total + len(counts)
        below += reached < GOAL * len(counts)
        print(f"{len(counts):6} {reached:8} {reached / len(counts):7.1%}  {path}")
        if "--missed" in sys.argv:
            print("       not:", *missed)
    print(f"{total:6} {reached_in_all:8} {reached_in_all / total:7.1%}  all parsers")
    if below:
        sys.exit(f"{below} parsers have less than {GOAL:.0%} of their lines reached")


if __name__ == "__main__":
    main()
