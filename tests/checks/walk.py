# Checks the walks of ARCHITECTURE.md against the code: each row "N `function`" is called by the nearest row above it with
# a smaller number, in the body of that function, or through the functions that are listed here. Usage: walk.py ROOT.
# Exits with 1 and prints a line for each call that the code does not make.
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| (\d+) `([\w:]+)` \| .* \|$")
SOURCES = ("runtime", "kernels", "api/src")

# (caller, callee): the functions between them, each of which calls the next.
BETWEEN = {
    ("HostOperations::execute", "Turn::enter"): ["Turn::carry", "Turn::enter_and_move"],
    ("HostOperations::execute", "meet"): ["Turn::carry", "Turn::enter_and_move", "OnHost::move"],
    ("HostOperations::execute", "Turn::leave"): ["Turn::carry"],
    ("Turn::enter", "enter"): ["Sequencer::enter_plainly"],
    ("GpuOperations::execute", "GpuExecutor::run"): ["Turn::carry", "Turn::enter_and_move", "IntoStream::move"],
    ("meet", "StagingView::publish"): ["Round::post"],
}
# How a call is written where it does not name the function.
WRITTEN = {("OnHost::move", "meet"): "plan->host->run(", ("meet", "Fold"): "plan.fold("}


def bodies(text):
    """{name: [body, ...]} of the functions that are defined in a file; members have the names of their structs before."""
    text = re.sub(r"//[^\n]*", "", text)
    found, scopes = {}, []
    position = 0
    opening = re.compile(r"(?P<type>\b(?:class|struct)\s+(?:\w+::)*(?P<name>\w+)[^;{}()]*\{)|(?P<function>(?P<called>(?:\w+::)*~?\w+)\s*\((?P<arguments>[^;{}]*?)\)\s*(?:const|noexcept|override|final|try|\s)*\{)|(?P<open>\{)|(?P<close>\})")
    for m in opening.finditer(text):
        if m["close"]:
            if scopes:
                name, begin = scopes.pop()
                if name and name.endswith("()"):
                    found.setdefault(name[:-2], []).append(text[begin : m.start()])
        elif m["type"]:
            scopes.append((m["name"], m.end()))
        elif m["function"] and m["called"] not in ("if", "for", "while", "switch", "catch"):
            inside = [s for s, _ in scopes if s and not s.endswith("()")]
            name = m["called"]
            if "::" not in name and inside:
                name = f"{inside[-1]}::{name}"
            scopes.append(("::".join(name.split("::")[-2:]) + "()", m.end()))
        else:
            scopes.append((None, m.end()))
    return found


def walks(page):
    """The (caller, callee) pairs of all tables of a page."""
    above = {}
    for line in page.splitlines():
        m = ROW.match(line)
        if not m:
            continue
        depth, name = int(m[1]), m[2]
        callers = [d for d in above if d < depth]
        if callers:
            yield above[max(callers)], name
        above = {d: n for d, n in above.items() if d < depth} | {depth: name}


def calls(caller, callee, functions):
    written = WRITTEN.get((caller, callee))
    pattern = re.escape(written) if written else r"\b" + callee.rpartition(":")[2] + r"\b(?:<[^;()]*>)?\s*[({]"
    return any(re.search(pattern, body) for body in functions.get(caller, []))


def findings(page, functions):
    seen = 0
    for caller, callee in walks(page):
        seen += 1
        way = [caller, *BETWEEN.get((caller, callee), []), callee]
        for a, b in zip(way, way[1:]):
            if a not in functions:
                yield f"ARCHITECTURE.md: `{a}` of the walk is not a function with a body"
            elif not calls(a, b, functions):
                yield f"ARCHITECTURE.md: `{caller}` is said to call `{callee}`, but `{a}` does not call `{b}`"
    if seen < 12:
        yield f"ARCHITECTURE.md has {seen} rows of walks: this check reads it wrongly"


def self_test():
    code = "namespace n {\nclass A {\n  int f(int x) const {\n    if (x) { g(x); }\n    return 0;\n  }\n};\nvoid B::h() try {\n  a.f(1);  // z(\n}\n"
    functions = bodies(code)
    wrong = []
    if set(functions) != {"A::f", "B::h"}:
        wrong.append(f"functions are {sorted(functions)}")
    rows = "| 1 `B::h` | x | y |\n| 2 `A::f` | x | y |\n| 3 `g` | x | y |\n"
    if list(walks(rows)) != [("B::h", "A::f"), ("A::f", "g")]:
        wrong.append("walks are read wrongly")
    for caller, callee, right in (("B::h", "A::f", True), ("A::f", "g", True), ("B::h", "g", False), ("B::h", "z", False)):
        if calls(caller, callee, functions) != right:
            wrong.append(f"{caller} calls {callee}: wrongly judged")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: walk.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = Path(sys.argv[1])
    functions = {}
    for top in SOURCES:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc") and "fake" not in path.parts:
                for name, found in bodies(path.read_text(errors="replace")).items():
                    functions.setdefault(name, []).extend(found)
    found = list(findings((root / "ARCHITECTURE.md").read_text(), functions))
    print("\n".join(found))
    print(f"{len(functions)} functions, {len(found)} findings")
    sys.exit(1 if found else 0)


main()
