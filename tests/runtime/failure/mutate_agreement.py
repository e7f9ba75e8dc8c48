# Writes copies of the agreement, each with one safety rule changed, which agreement_test.cc has to detect. Usage:
# mutate_agreement.py ROOT OUTPUT. Ends with 1 if a rule is not found exactly once in the source.
import pathlib
import sys

# namespace of the copy: (its error, the rule in the source, the replacement)
MUTANTS = {
    "half_is_quorum": ("any half is a quorum", "return first >= 0 && voters.has(first);", "return true;"),
    "forgets_accepted": (
        "a new ballot begins with a value of its own",
        "if (newest->accepted > 0) { vote_.value = newest->value; }",
        "if (false) { }",
    ),
    "shares_ballots": (
        "two proposers can take the same number",
        "vote_.promised = round << kRankBits | static_cast<std::uint64_t>(rank_);",
        "vote_.promised = round << kRankBits;",
    ),
    "counts_the_dead": (
        "the dead count as members that could still vote",
        "if (gone.has(r)) continue; if (first < 0) first = r; ++all; yes += voters.has(r);",
        "if (first < 0) first = r; ++all; yes += voters.has(r) && !gone.has(r);",
    ),
    "skips_promises": (
        "proposes before a quorum has promised",
        "if (!is_quorum(promises, gone)) return;",
        "",
    ),
}
OPEN, CLOSE = "namespace ouro::rt {", "}  // namespace ouro::rt"


def body(path):
    """Returns the includes of a file, and the body of its namespace, with whitespace and comments collapsed to one blank."""
    text = path.read_text()
    includes = [line for line in text.splitlines() if line.startswith("#include") and path.stem not in line]
    inner = text[text.index(OPEN) + len(OPEN) : text.rindex(CLOSE)]
    inner = "\n".join(line.split("//")[0] for line in inner.splitlines())
    return includes, " ".join(inner.split())


def main():
    root, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    parts = [body(root / "runtime/health" / name) for name in ("agreement.h", "agreement.cc")]
    includes = sorted({line for part in parts for line in part[0]})
    source = " ".join(part[1] for part in parts)
    lines = ["// Made by mutate_agreement.py.", "#pragma once", *includes]
    for name, (wrong, rule, instead) in MUTANTS.items():
        if source.count(rule) != 1:
            sys.exit(f"agreement.cc has the rule of {name} {source.count(rule)} times; expected once: {rule}")
        lines += [f"/// Wrong: {wrong}.", f"namespace ouro::rt::{name} {{", source.replace(rule, instead), "}"]
    output.write_text("\n".join(lines) + "\n")


main()
