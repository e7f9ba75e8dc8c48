# Compiles and runs the programs of docs/design/twins, as they are on the pages, and each with a planted fault, which it
# must report. The tables of the pages name files that exist. Usage: twins.py ROOT CXX. Where nvcc is found, the program
# for GPUs is also compiled by it, and run where there is a GPU. Exits with 1 and prints a line for each finding.
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import papers
import readme

LIMIT = 60  # seconds that a program may run; it ends by itself, at its own deadline at the latest
NO_GPU = 77
ROW = re.compile(r"^\| (.*) \|$", re.M)
FLAGS = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Werror", "-pthread", "-x", "c++"]
NVCC_FLAGS = ["-std=c++20", "-Werror", "all-warnings", "-gencode", "arch=compute_90,code=sm_90",
              "-gencode", "arch=compute_75,code=compute_75", "-x", "cu"]


class Twin:
    """A page: the most lines of its first block, and faults as lists of (text, replacement)."""

    def __init__(self, page, lines, faults, for_gpus=False):
        self.page, self.lines, self.faults, self.for_gpus = page, lines, faults, for_gpus


TWINS = [
    Twin("single-round.md", 80, [
        [("mine.posted.store(round, ", "mine.posted.store(round - 1, "), ("kDeadline{20}", "kDeadline{1}")],
        [("sum += slots[r][round % 2].data[i]", "sum += slots[rank][round % 2].data[i]")],
    ]),
    Twin("two-shot.md", 60, [
        [(".store(number, ", ".store(number - 1, "), ("1L << 26", "1L << 10")],
        [("a.out[p][i] = sum", "a.out[a.rank][i] = sum")],
    ], for_gpus=True),
    Twin("tcp-message.md", 80, [
        [("arrived_.emplace(static_cast<int>(h[0]), ", "arrived_.emplace(0, "), ("10'000", "500")],
        [("arrived_.lower_bound(tag)", "arrived_.begin()")],
    ]),
]


def program(text):
    """The blocks of a page in one file."""
    return "\n".join(code for _, language, code in readme.blocks(text) if language == "cpp")


def planted(code, fault):
    for old, new in fault:
        if code.count(old) != 1:
            sys.exit(f"the check itself is broken: '{old}' is {code.count(old)} times in the program")
        code = code.replace(old, new)
    return code


def compiled(command, code, into):
    """(path of the program, "") or (None, the compiler's messages)."""
    source, binary = into / "twin.cc", into / "twin"
    source.write_text(code)
    done = subprocess.run([*command, str(source), "-o", str(binary)], text=True, capture_output=True, timeout=240)
    return (binary, "") if done.returncode == 0 else (None, done.stderr)


def outcome(binary):
    """(exit code, what it printed)"""
    try:
        done = subprocess.run([str(binary)], text=True, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None, f"it did not end within {LIMIT} s"
    return done.returncode, done.stdout + done.stderr


def wrong_runs(twin, code, cxx, into):
    """What is wrong with a page's program, and with its faults, on the host."""
    for fault in [[], *twin.faults]:
        binary, said = compiled([cxx, *FLAGS], planted(code, fault), into)
        if not binary:
            yield f"its program does not compile:\n{said}"
            return
        exit_code, said = outcome(binary)
        if not fault and exit_code != 0:
            yield f"its program fails: exit {exit_code}:\n{said}"
            return
        if fault and exit_code != 1:
            yield f"the fault '{fault[0][1]}' is not reported: exit {exit_code}:\n{said}"


def wrong_on_gpus(code, nvcc, into):
    binary, said = compiled([nvcc, *NVCC_FLAGS], code, into)
    if not binary:
        yield f"nvcc does not compile its program:\n{said}"
        return
    exit_code, said = outcome(binary)
    if exit_code not in (0, NO_GPU):
        yield f"its program fails on the GPU: exit {exit_code}:\n{said}"


def wrong_text(twin, text, files, words):
    """What is wrong with a page apart from what its program does."""
    code = program(text)
    blocks = [c for _, language, c in readme.blocks(text) if language == "cpp"]
    if not blocks or blocks[0].count("\n") > twin.lines:
        yield f"its first block should have 1 to {twin.lines} lines"
    for line in code.splitlines():
        if len(line) > 110:
            yield f"a line of code is longer than 110: {line}"
    rows = ROW.findall(text)[1:]  # below the head of the table
    if len(rows) < 8:
        yield f"its table has {len(rows)} rows"
    for row in rows:
        cells = row.split(" | ")
        if len(cells) != 3 or not all(papers.SOURCE.search(name) for name in papers.NAMED.findall(cells[2])):
            yield f"a row needs a difference, a reason and files: {row}"
        elif not papers.NAMED.search(cells[2]):
            yield f"a row names no file: {row}"
    known = words | set(re.findall(r"\w+", code))
    for line, what in papers.strange_names(text, files, known):
        yield f"line {line}: {what}"


def self_test():
    twin = Twin("x.md", 3, [])
    row = "| differs | because | `a/b.cc` |\n"
    good = "```cpp\nint f();\n```\n| the real one | because | where |\n|---|---|---|\n" + "".join(
        row.replace("differs", f"differs {i}") for i in range(8))
    wrong = [] if not list(wrong_text(twin, good, ["a/b.cc"], set())) else ["a good page is called wrong"]
    for old, new in (("int f();\n", "a\nb\nc\nd\n"), ("`a/b.cc`", "`a/c.cc`"), ("| because | `a/b.cc`", "| `a/b.cc`"),
                     ("| `a/b.cc` |\n", "| somewhere |\n"), (row.replace("differs", "differs 3"), "")):
        if not list(wrong_text(twin, good.replace(old, new), ["a/b.cc"], set())):
            wrong.append(f"missed: {new}")
    return wrong


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: twins.py ROOT CXX")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root, cxx, nvcc = Path(sys.argv[1]), sys.argv[2], shutil.which("nvcc")
    folder = root / "docs/design/twins"
    files, words = papers.sources_of(root)
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        for twin in TWINS:
            text = (folder / twin.page).read_text()
            found += [(twin.page, w) for w in wrong_text(twin, text, files, words)]
            found += [(twin.page, w) for w in wrong_runs(twin, program(text), cxx, into)]
            if twin.for_gpus and nvcc:
                found += [(twin.page, w) for w in wrong_on_gpus(program(text), nvcc, into)]
    listed = {twin.page for twin in TWINS} | {"README.md"}
    found += [(p.name, "this check does not know the page") for p in folder.glob("*.md") if p.name not in listed]
    for page, what in found:
        print(f"docs/design/twins/{page}: {what}")
    print(f"{len(TWINS)} twins, {len(found)} findings" + ("" if nvcc else "; there is no nvcc"))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
