# Checks the walks of ARCHITECTURE.md against the code. In a row "N `function` | ... | files", the function is defined in one
# of the files, and it is called by the function of the nearest row above with a smaller number: in the body of that one, or
# through the functions that are listed here. The rows that one function calls stand in the order of the calls.
# Usage: walk.py ROOT. Exits with 1 and prints a line for each difference.
import re
import sys

import tree

ROW = re.compile(r"^\| (\d+) `([\w:]+)` \| .* \| ([^|]*) \|$")
FOLDERS = ("runtime", "kernels", "transport", "api/src")
FEWEST = 24  # rows, in the tables of the host, of messages and of GPUs

# (caller, callee): the functions between them, each of which calls the next. They may be in any file.
BETWEEN = {
    ("HostOperations::execute", "Turn::enter"): ["Turn::carry", "Turn::enter_and_move"],
    ("HostOperations::execute", "meet"): ["Turn::carry", "Turn::enter_and_move", "OnHost::move"],
    ("HostOperations::execute", "Turn::leave"): ["Turn::carry"],
    ("Turn::enter", "enter"): ["Sequencer::enter_plainly"],
    ("GpuOperations::execute", "GpuExecutor::run"): ["Turn::carry", "Turn::enter_and_move", "IntoStream::move"],
    ("meet", "StagingView::publish"): ["Round::post"],
    ("Group::exchange", "Mailbox::post"): ["Group::exchange_held"],
    ("Group::exchange", "Mailbox::complete"): ["Group::exchange_held"],
}
# How a call is written where it does not name the function: through a pointer or an object.
WRITTEN = {("OnHost::move", "meet"): "plan->host->run(", ("meet", "Fold"): "plan.fold("}

OPENING = re.compile(
    r"(?P<type>\b(?:class|struct)\s+(?:\w+::)*(?P<name>\w+)[^;{}()]*\{)"
    r"|(?P<called>(?:\w+::)*~?\w+)\s*\([^;{}]*?\)\s*(?:const|noexcept|override|final|try|\s)*\{"
    r"|(?P<open>\{)|(?P<close>\})"
)
NOT_FUNCTIONS = ("if", "for", "while", "switch", "catch")


def bodies(text):
    """{name: [body, ...]} of the functions that a file defines; the name of a member begins with that of its class."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', tree.without_comments(text))
    found, scopes = {}, []
    for m in OPENING.finditer(text):
        if m["close"]:
            name, begin = scopes.pop() if scopes else (None, 0)
            if name and name.endswith("()"):
                found.setdefault(name[:-2], []).append(text[begin : m.start()])
        elif m["type"]:
            scopes.append((m["name"], m.end()))
        elif m["called"] and m["called"] not in NOT_FUNCTIONS:
            inside = [s for s, _ in scopes if s and not s.endswith("()")]
            name = m["called"] if "::" in m["called"] or not inside else f"{inside[-1]}::{m['called']}"
            scopes.append(("::".join(name.split("::")[-2:]) + "()", m.end()))
        else:
            scopes.append((None, m.end()))
    return found


class Row:
    def __init__(self, line, depth, name, files):
        self.line, self.depth, self.name, self.caller = line, depth, name, None
        self.files = []  # as the row names them; `.cc` after `x.h` stands for `x.cc`
        for file in re.findall(r"`([\w./-]+)`", files):
            self.files.append(self.files[-1].rpartition(".")[0] + file if file.startswith(".") else file)

    def way(self):
        """From the caller to this row."""
        return [self.caller.name, *BETWEEN.get((self.caller.name, self.name), []), self.name]


def walks(page):
    """The rows of all tables, with their callers."""
    above = {}
    for number, line in enumerate(page.splitlines(), 1):
        if m := ROW.match(line):
            row = Row(number, int(m[1]), m[2], m[3])
            above = {depth: r for depth, r in above.items() if depth < row.depth}
            row.caller = above[max(above)] if above else None
            above[row.depth] = row
            yield row


class Code:
    """Functions by file, and what calls what."""

    def __init__(self, files):
        self.texts = {name: tree.without_comments(text) for name, text in files.items()}
        self.functions = {name: bodies(text) for name, text in files.items()}

    def named(self, file):
        return [name for name in self.texts if name == file or name.endswith("/" + file)]

    def bodies_of(self, function, files=None):
        """`files`: those that a row names, or None for all."""
        names = self.functions if files is None else {name for file in files for name in self.named(file)}
        return [body for name in sorted(names) for body in self.functions[name].get(function, [])]

    def has_word(self, function, files):
        word = re.compile(rf"\b{function.rpartition(':')[2]}\b")
        return any(word.search(self.texts[name]) for file in files for name in self.named(file))


def calls(caller, callee, body):
    """Where the body calls it; nothing if it does not."""
    written = WRITTEN.get((caller, callee))
    pattern = re.escape(written) if written else r"\b" + callee.rpartition(":")[2] + r"\b(?:<[^;()]*>)?\s*[({]"
    return [m.start() for m in re.finditer(pattern, body)]


def in_order(before, after, code):
    """Whether the calls of two rows that have one caller stand in this order, where their ways part."""
    first, second = before.way(), after.way()
    parts = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), None)
    if parts is None or parts == 0:
        return True
    at = first[parts - 1]
    for body in code.bodies_of(at, before.caller.files if parts == 1 else None):
        one, other = calls(at, first[parts], body), calls(at, second[parts], body)
        if one and other and min(one) < max(other):
            return True
    return False


def findings(page, code):
    """(line, text) of each difference."""
    rows = list(walks(page))
    last = {}  # by the line of the caller
    for row in rows:
        for file in row.files:
            if not code.named(file):
                yield row.line, f"{file} does not exist"
        if not row.files:
            yield row.line, f"`{row.name}` has no file"
        elif not code.has_word(row.name, row.files):
            yield row.line, f"`{row.name}` is not in {' or '.join(row.files)}"
        if not row.caller:
            continue
        way = row.way()
        for i, (a, b) in enumerate(zip(way, way[1:])):
            found = code.bodies_of(a, row.caller.files if i == 0 else None)
            if not found:
                yield row.line, f"`{a}`, a caller, is not a function with a body in {', '.join(row.caller.files) if i == 0 else 'any file'}"
            elif not any(calls(a, b, body) for body in found):
                yield row.line, f"`{row.caller.name}` is said to call `{row.name}`, but `{a}` does not call `{b}`"
        before = last.get(row.caller.line)
        if before and not in_order(before, row, code):
            yield row.line, f"`{row.caller.name}` does not call `{before.name}` before `{row.name}`"
        last[row.caller.line] = row
    used = {(row.caller.name, row.name) for row in rows if row.caller}
    steps = {step for row in rows if row.caller for step in zip(row.way(), row.way()[1:])}
    for pair in [p for p in BETWEEN if p not in used] + [p for p in WRITTEN if p not in steps]:
        yield 1, f"no row calls `{pair[1]}` from `{pair[0]}`, which walk.py lists"
    if len(rows) < FEWEST:
        yield 1, f"{len(rows)} rows of walks: this check reads the page wrongly"


def self_test():
    code = Code({"a/x.h": "class A {\n  int f(int x) const {\n    if (x) { g(x); h<1>(\"}\"); }\n    return 0;\n  }\n};\n",
                 "b/y.cc": "namespace n {\nvoid B::h() try {\n  a.f(1);  // z(\n  last();\n}\n}\n", "b/z.cc": "void g(int) {}\nvoid h() {}\nvoid last() {}\n"})
    wrong = []
    if {k for f in code.functions.values() for k in f} != {"A::f", "B::h", "g", "h", "last"}:
        wrong.append(f"functions are {code.functions}")
    good = ["| 1 `B::h` | x | `b/y.cc` |", "| 2 `A::f` | x | `x.h` |", "| 3 `g` | x | `y.cc`, `z.cc` |", "| 3 `h` | x | `z.cc` |", "| 2 `last` | x | `z.cc` |"]

    def said(rows):
        return [text for _, text in findings("\n".join(rows), code) if "walk.py lists" not in text and "reads the page" not in text]

    if found := said(good):
        wrong.append(f"a right walk is called wrong: {found}")
    for at, old, new in ((2, "| 3 `g`", "| 2 `g`"), (1, "`A::f`", "`A::k`"), (1, "x.h", "z.cc"), (1, "x.h", "gone.h"), (4, "2 `last`", "3 `last`"),
                         (3, "`h`", "`z`"), (1, "| `x.h`", "| x.h")):
        if not said([row.replace(old, new) if i == at else row for i, row in enumerate(good)]):
            wrong.append(f"not found: {new}")
    if not said(good[:2] + [good[3], good[2]]):
        wrong.append("calls in the wrong order are not found")
    if len([1 for _, text in findings("", code) if "walk.py lists" in text]) != len(BETWEEN) + len(WRITTEN):
        wrong.append("rows that only this check lists are not found")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: walk.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    names = [name for name in tree.files(root, FOLDERS) if "fake" not in name.parts]
    code = Code({name.as_posix(): (root / name).read_text(errors="replace") for name in names})
    found = list(findings((root / "ARCHITECTURE.md").read_text(), code))
    for line, text in found:
        print(f"ARCHITECTURE.md:{line}: {text}")
    print(f"{sum(len(f) for f in code.functions.values())} functions, {len(found)} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
