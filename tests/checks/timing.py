# Finds upper bounds on measured time in tests. Allowed: kHang (tests/timing.h) in any test, and guaranteed times in
# suites named Timed*, which run alone. Usage: timing.py ROOT. Exits with 1 and prints a line for each bound that a slow
# processor could break.
import re
import sys

import tree

HANG = re.compile(r"\bkHang\b")
LONG = 20  # seconds: a literal bound that only a hang exceeds
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600,
         "nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1, "minutes": 60, "Milliseconds": 1e-3}
NUMBER = r"([0-9][0-9']*(?:\.[0-9]+)?)"
LITERAL = re.compile(rf"\b{NUMBER}(ns|us|ms|s|min|h)\b")
MADE = re.compile(rf"\b((?:nano|micro|milli)?seconds|minutes|Milliseconds)[({{]{NUMBER}[)}}]")
BOUND = re.compile(r"\bk[A-Z]\w*Bound\b")
CLOCK = re.compile(r"\bnow(_ns|_s)?\(\)|\b(took|elapsed|waited)\b|\.seconds\b|\bseconds_since\(|\b\w+_ns\[")
ASSERTION = re.compile(r"\b(EXPECT|ASSERT)_(LT|LE|GT|GE|TRUE|FALSE)\s*\(|\b(OURO_RANK_CHECK)\s*\(")
WAIT = re.compile(r"\b(eventually|run_until|all_told|await|wait|wait_for|recv|synchronize)\s*\(")
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(\s*(\w+)\s*,", re.MULTILINE)


def closing(code, at, pair="()"):
    """The position behind the bracket that closes the one at `at`; strings are skipped."""
    depth, i = 0, at
    while i < len(code):
        token = tree.TOKEN.match(code, i)
        if token and code[i] in "\"'R":
            i = token.end()
            continue
        depth += (code[i] == pair[0]) - (code[i] == pair[1])
        i += 1
        if depth == 0:
            return i
    return len(code)


def first_comma(text):
    """Where the first argument ends."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            return i
    return len(text)


def durations(text):
    """The durations that occur in the text, in seconds."""
    return ([float(n.replace("'", "")) * UNITS[u] for n, u in LITERAL.findall(text)]
            + [float(n.replace("'", "")) * UNITS[u] for u, n in MADE.findall(text)])


def slow_breaks(kind, arguments):
    """Whether a slow processor could make this assertion fail."""
    if HANG.search(arguments):
        return False
    if kind in ("LT", "LE", "GT", "GE"):
        at = first_comma(arguments)
        small, large = arguments[:at], arguments[at + 1:]
        if kind in ("GT", "GE"):
            small, large = large, small
        bounded = bool(durations(large) or BOUND.search(large))
        if not bounded and (kind in ("GT", "GE") or not CLOCK.search(small)):
            return False
        return not durations(large) or min(durations(large)) < LONG
    compared = re.search(r"<=?\s*((?:[\w:]+::)?[\w.'{}()]+)", arguments)
    if compared and (durations(compared[1]) or BOUND.fullmatch(compared[1])):
        return BOUND.search(compared[1]) or min(durations(compared[1])) < LONG
    if kind == "TRUE" and WAIT.search(arguments):
        return bool(durations(arguments)) and min(durations(arguments)) < 10
    return False


def findings(code):
    """The position of each bound that is not kHang and is outside of a suite named Timed*."""
    timed = [(m.start(), closing(code, code.index("{", m.end()), "{}")) for m in TEST.finditer(code)
             if m[1].startswith("Timed")]
    for match in ASSERTION.finditer(code):
        if any(begin <= match.start() < end for begin, end in timed):
            continue
        arguments = code[match.end():closing(code, match.end() - 1) - 1]
        if slow_breaks(match[2] or "CHECK", arguments):
            yield match.start()


BAD = ("EXPECT_LT(Clock::now() - start, 900ms);", "EXPECT_LT(ended - raised, 200ms);", "EXPECT_LT(std::chrono::nanoseconds(took[r]), kHardBound);",
       "EXPECT_LE(took, std::chrono::seconds(2));", "EXPECT_LT(o.seconds, 10);", "EXPECT_GT(1s, Clock::now() - start);",
       'OURO_RANK_CHECK(took < 4s, "took {}", took);', "ASSERT_TRUE(Clock::now() - t < milliseconds(200));",
       "EXPECT_TRUE(eventually([&] { return done; }, 1s));", "ASSERT_TRUE(job.all_told(2s));",
       "EXPECT_LT(seconds_since(start), limit);")
GOOD = ("EXPECT_LT(Clock::now() - start, kHang);", "EXPECT_GE(Clock::now() - start, 100ms);", "EXPECT_LT(count, 10);",
        "EXPECT_GT(row->out_of_place.us, 0);", 'OURO_RANK_CHECK(waited >= 30ms, "");', "EXPECT_TRUE(eventually(f));",
        "EXPECT_FALSE(a.await(x, 300ms));", "EXPECT_LT(p->seconds, ring->seconds);", "ASSERT_TRUE(job.all_told(30s));",
        "EXPECT_GT(o.seconds, 2.5);", "// EXPECT_LT(took, 1s);", 'EXPECT_EQ(text, "took 1s");')


def self_test():
    """Self-test: wrong verdicts about planted assertions."""
    def judged(suite, line):
        return bool(list(findings(tree.without_comments(f"TEST({suite}, X) {{\n  {line}\n}}\n"))))
    return ([f"missed: {line}" for line in BAD if not judged("Death", line)]
            + [f"falsely accused: {line}" for line in GOOD if judged("Death", line)]
            + [f"falsely accused in a Timed suite: {line}" for line in BAD if judged("TimedDeath", line)])


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: timing.py ROOT")
    wrong = self_test()
    if wrong:
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    found = 0
    for path in tree.files(root, ("tests",)):
        code = tree.without_comments((root / path).read_text())
        for at in findings(code):
            line = code.count("\n", 0, at) + 1
            print(f"{path}:{line}: a bound on time that a slow processor breaks: kHang (tests/timing.h), or a suite Timed*")
            found += 1
    print(f"{found} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
