# Checks that every test that skips gives a reason, and that the reason begins as one of those in the table of
# docs/design/tests.md. Usage: skips.py ROOT. Prints how many places have each reason; exits with 1 and prints a line for
# each place without a known one, and for each reason in the table that no place gives.
import collections
import re
import sys

import tree

PAGE = "docs/design/tests.md"
ROW = re.compile(r"^\| (`[^|]*`) \|", re.M)
STRING = r'[rf]?(["\'])((?:\\.|(?!\1).)*)\1'
CALL = re.compile(r"\b(?:GTEST_SKIP\(\)\s*<<|skipTest\(|SkipTest\()\s*")  # googletest, unittest
LITERAL = re.compile(STRING)
LINE = re.compile(r"\bSKIP(?:PED)?\b: ?([^\"'\\]*)")  # a program's, behind which it exits with 77
EXIT = re.compile(r"\b(?:sys\.exit\(77\)|exit 77\b)")
FEWEST = 80  # places
NAMES = re.compile(r"\.(?:cc|c|h|cu|py|sh)$|/CMakeLists\.txt$")
SCRIPTS = re.compile(r"\.(?:py|sh)$")


def reasons(page):
    """The beginnings of texts that the table lists."""
    return [name for cell in ROW.findall(page) for name in re.findall(r"`([^`]+)`", cell)]


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def places(path, text):
    """(line, reason) of each place that skips; the reason is None if it is not a text that stands there."""
    for found in CALL.finditer(text):
        literal = LITERAL.match(text, found.end())
        yield line_of(text, found.start()), literal[2] if literal else None
    said = [(line_of(text, m.start()), m[1]) for m in LINE.finditer(text)]
    yield from said
    for found in EXIT.finditer(text) if SCRIPTS.search(path) else []:
        if not said:
            yield line_of(text, found.start()), None


def reason_of(text, known):
    """The reason in the table with which the text begins."""
    return next((k for k in known if text is not None and text.startswith(k)), None)


PLANTED = {  # a file, and whether all its places give a reason of the table
    ("a.cc", 'if (x) GTEST_SKIP() << "no moon: " << x;'): True,
    ("a.cc", "GTEST_SKIP()\n    << \"no moon\";"): True,
    ("a.cc", 'GTEST_SKIP() << "no sun";'): False,
    ("a.cc", "GTEST_SKIP() << status.message();"): False,
    ("a.py", "self.skipTest(f'no moon in {sky}')"): True,
    ("a.py", 'raise unittest.SkipTest("the moon has set")'): False,
    ("a.py", 'print("SKIP: no moon")\nsys.exit(77)'): True,
    ("a.py", 'print("SKIP: cloudy")\nsys.exit(77)'): False,
    ("a.sh", "[ -e moon ] || exit 77"): False,
    ("a.sh", "[ -e moon ] || { echo 'SKIP: no moon'; exit 77; }"): True,
}


def self_test():
    """Wrong verdicts about planted files."""
    return [f"{text!r} is taken for {'wrong' if right else 'right'}" for (path, text), right in PLANTED.items()
            if all(reason_of(said, ["no moon"]) for _, said in places(path, text)) != right or not list(places(path, text))]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: skips.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    known, counts, findings = reasons((root / PAGE).read_text()), collections.Counter(), 0
    for file in sorted((root / "tests").rglob("*")):
        path = str(file.relative_to(root))
        if not NAMES.search(path) or file.name == "skips.py":
            continue
        for line, text in places(path, file.read_text()):
            if reason := reason_of(text, known):
                counts[reason] += 1
                continue
            print(f"{path}:{line}: skips without a reason of {PAGE}" + (f": {text}" if text else ""))
            findings += 1
    for reason in known:
        if not counts[reason]:
            print(f"{PAGE}: no test skips because of: {reason}")
            findings += 1
    if sum(counts.values()) < FEWEST:
        print(f"only {sum(counts.values())} places skip, of at least {FEWEST}: the check does not find them")
        findings += 1
    print("\n".join(f"{n:4} {reason}" for reason, n in counts.most_common()))
    print(f"{findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
