# Checks that docs/design/extending.md names every file to which an element type, a reduction or a collective has to be
# added. Such a file names several of them, one by one, or all by the list of the core. Usage: additions.py ROOT. Exits
# with 1 and prints a line for each file that is missing from a row, and for each name of a file that does not exist.
import re
import sys
from pathlib import Path

SOURCES = ("runtime", "kernels", "transport", "api", "tools", "bench")
SUFFIXES = (".h", ".hpp", ".cc", ".cu", ".py")


class Kind:
    """What is added: the row of the page, and how a file shows that it has to know each member of the kind.

    `spellings`: patterns with one group, of which the distinct matches are counted, and the number from which a file
    counts. `listed`: the name of the list of the core, from which a file counts at once."""

    def __init__(self, row, spellings, listed=None):
        self.row, self.listed = row, listed
        self.spellings = [(re.compile(pattern), least) for pattern, least in spellings]

    def concerns(self, text):
        if self.listed and f"{self.listed}(" in text:
            return True
        return any(len(set(pattern.findall(text))) >= least for pattern, least in self.spellings)


KINDS = (
    Kind(
        "a dtype",
        (
            (r"\bDType(?:::|\.)([a-z]+\d*(?:e\dm\d)?)\b", 4),
            (r"\bnccl(U?[Ii]nt\d+|B?[Ff]loat\w+)\b", 5),
            (r"\bk(U?Int\d*|Half|Float\w*|Double|BFloat16|Long|Short|Char|Byte|Bool)\b", 5),
        ),
        "OURO_DTYPES",
    ),
    Kind(
        "a reduction",
        (
            (r"\b(?:OpKind|ReduceOp)(?:::|\.)([a-z]+)\b", 5),
            (r"\bnccl(Sum|Prod|Max|Min|Avg)\b", 4),
        ),
        "OURO_OPS",
    ),
    Kind("an operation", ((r"\b(all_reduce|reduce_scatter|all_gather|broadcast|all_to_all|gather|scatter|reduce|barrier|mix)\b", 7),)),
)


def row_of(page, name):
    """The text of the second column of the row."""
    for line in page.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) >= 4 and cells[1] == name:
            return "|".join(cells[2:-1])
    return None


def named(row, files):
    """Files that the row names: by their whole paths, or by names that follow a name in the same folder."""
    text = row.split("Tests:")[0].split("Test:")[0]
    found, folder = set(), ""
    for name in re.findall(r"`([\w./-]+\.(?:h|hpp|cc|cu|py))`", text):
        path = name if "/" in name else f"{folder}/{name}"
        if "/" not in name and path not in files:
            continue  # in a folder that the row says in words
        found.add(path)
        folder = path.rpartition("/")[0]
    return found


def findings(page, sources):
    for kind in KINDS:
        row = row_of(page, kind.row)
        if row is None:
            yield f"docs/design/extending.md has no row for {kind.row}"
            continue
        there = named(row, sources)
        for name in sorted(there - set(sources)):
            yield f"docs/design/extending.md, {kind.row}: {name} does not exist"
        for name, text in sorted(sources.items()):
            if kind.concerns(text) and name not in there:
                yield f"{name} has to know each member of its kind: name it in docs/design/extending.md, in the row of {kind.row}"


def self_test():
    page = "| a dtype | `a/x.h` (all), `y.cc` |\n| a reduction | `a/x.h` |\n| an operation | `a/x.h` |\n"
    switch = "case DType::f16: case DType::f32: case DType::f64: case DType::bf16:"
    known = {"a/x.h": switch, "a/y.cc": "OURO_DTYPES(X)"}
    wrong = []
    if list(findings(page, known)):
        wrong.append("files that are named are reported")
    for extra in (switch, "OURO_OPS(X)", "ncclSum ncclProd ncclMax ncclMin", "kHalf kFloat kDouble kLong kBool",
                  "all_reduce reduce_scatter all_gather broadcast gather scatter barrier"):
        if not list(findings(page, known | {"b/z.cc": extra})):
            wrong.append(f"a file is not found: {extra}")
    if list(findings(page, known | {"b/z.cc": "DType::f16 DType::f32"})):
        wrong.append("a file with two types is reported")
    if not list(findings(page.replace("`a/x.h` (all)", "`a/gone.h`"), known)):
        wrong.append("a file that does not exist is not reported")
    if not list(findings(page.replace("an operation", "another"), known)):
        wrong.append("a missing row is not reported")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: additions.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = Path(sys.argv[1])
    sources = {
        str(p.relative_to(root)): p.read_text(errors="replace")
        for top in SOURCES
        for p in sorted((root / top).rglob("*"))
        if p.suffix in SUFFIXES and p.is_file()
    }
    if len(sources) < 500:
        sys.exit(f"{len(sources)} sources: this check reads the tree wrongly")
    found = list(findings((root / "docs/design/extending.md").read_text(), sources))
    print("\n".join(found))
    print(f"{len(sources)} sources, {len(found)} findings")
    sys.exit(1 if found else 0)


main()
