# Checks docs/design/extending.md against the tree. Each file that it names exists and contains the names in parentheses after
# it. The rows of an element type, a reduction and a collective name every file that lists the members of that kind one by one.
# Each file in the table of additions of ARCHITECTURE.md is on that page, too. Usage: additions.py ROOT. Exits with 1 and prints
# a line for each finding.
import fnmatch
import re
import sys

import tree

PAGE, MAP, CORE = "docs/design/extending.md", "ARCHITECTURE.md", "runtime/core/types.h"
PRODUCT = ("runtime", "kernels", "transport", "api", "tools")
CODE = tree.SOURCE_SUFFIXES | {".py", ".map", ".sh", ""}  # without a suffix: scripts
TEXTS = CODE | {".c", ".md", ".txt", ".cmake"}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


class Kind:
    """What is added, as the row of the page calls it, and how a file shows that it lists the members of the kind: by a switch
    over `enum`, by `macro`, the list of the core, or by at least `least` members as `spelt`, a pattern with one group for
    identifiers in lower case without underscores."""

    def __init__(self, row, enum, macro, least, spelt):
        self.row, self.enum, self.macro, self.least, self.spelt = row, enum, macro, least, re.compile(spelt)

    def lists(self, code):
        if f"case {self.enum}::" in code or self.macro and f"{self.macro}(" in code:
            return True
        found = [self.spelt.fullmatch(i.replace("_", "").lower()) for i in set(IDENTIFIER.findall(code))]
        return len({m[1] for m in found if m}) >= self.least


def members(core, enum, macro=None):
    """The members of an enumeration of the core, which a macro may list, as an alternative of patterns."""
    if macro:
        rows = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", core)
        found = re.findall(r"X\((\w+),", rows[1]) if rows else []
    else:
        body = re.search(rf"enum class {enum}\b[^{{]*\{{(.*?)\}};", core, re.S)
        found = [m for m in re.findall(r"^\s*(\w+),?", body[1], re.M) if m != "none"] if body else []
    if len(found) < 9:
        sys.exit(f"{enum} has {len(found)} members: this check reads {CORE} wrongly")
    return "|".join(m.replace("_", "") for m in found)


def kinds(core):
    types, reductions, collectives = members(core, "DType", "OURO_DTYPES"), members(core, "OpKind", "OURO_OPS"), members(core, "Collective")
    return (
        # Nine of them: a file that has the integers of all widths, which are eight, need not list the element types.
        Kind("a dtype", "DType", "OURO_DTYPES", 9, rf"(?:ourodtype)?({types})"),
        # Floats, by the names that they have in C++, NCCL, Python and PyTorch.
        Kind("a dtype", "DType", "OURO_DTYPES", 3, r"(?:nccl|k)?(half|float16|bfloat16|float32|float64|f8e4m3|f8e5m2)"),
        Kind("a reduction", "OpKind", "OURO_OPS", 6, rf"(?:ouroop)?({reductions})"),
        Kind("a reduction", "OpKind", "OURO_OPS", 4, r"nccl(sum|prod|max|min|avg)"),
        Kind("an operation", "Collective", None, 6, rf"(?:ourocollective|ouro|p?nccl)?({collectives})"),
    )


# Files that list a kind and that an addition leaves as they are: {row: {file: reason}}.
EXCEPT = {}


def rows_of(page):
    """{name of the row: (line, text of its other cells)}"""
    found = {}
    for number, line in enumerate(page.splitlines(), 1):
        cells = [c.strip() for c in line.split("|")]
        if len(cells) >= 4 and set(cells[1]) - set("-"):
            found[cells[1]] = number, "|".join(cells[2:-1])
    return found


def parts_of(text):
    """(text, folder to which its names are relative): the files of a row, and their tests."""
    code, *tests = re.split(r"\b[Tt]ests?: ", text, maxsplit=1)
    return [(code, "")] + [(t, "tests/") for t in tests]


def named(text, files, root=""):
    """For each name of a file in the text: the name, the files, and the words in parentheses after it. A name without a folder
    is in the folder that was named last, or else it is the only file of this name."""
    folders = {f[:i] for f in files for i in range(len(f)) if f[i] == "/"}
    folder = ""
    for m in re.finditer(r"`([\w./*-]+)`(?=( \([^()]*\))?)", text):
        name = m[1]
        if "/" in name and root + name in folders:
            folder = root + name
            continue
        if "." not in name and root + name not in files or name.startswith("."):
            continue  # a word, or a suffix
        if "/" in name:
            folder = (root + name).rpartition("/")[0]
            found = fnmatch.filter(files, root + name)
        else:
            found = fnmatch.filter(files, f"{folder}/{name}") or fnmatch.filter(files, f"{root}*/{name}")
            if len(found) > 1 and "*" not in name:
                found = []
        yield name, found, re.findall(r"`([A-Za-z_]\w*)`", m[2] or "")


def page_findings(page, texts):
    """(line, text) of names that do not fit the tree."""
    for row, (line, text) in rows_of(page).items():
        for part, root in parts_of(text):
            for name, found, words in named(part, texts, root):
                if not found:
                    yield line, f"{row}: {name} does not exist, or several files have this name"
                for word in words:
                    if found and not any(re.search(rf"\b{word}\b", texts[f]) for f in found):
                        yield line, f"{row}: {word} is not in {name}"


def kind_findings(page, texts, code, all_kinds, left=EXCEPT):
    """(line, text) of files that list a kind and are not in its row. `code`: texts without comments; `left`: as EXCEPT."""
    rows = rows_of(page)
    for row in dict.fromkeys(kind.row for kind in all_kinds):
        line, text = rows.get(row, (1, None))
        if text is None:
            yield 1, f"there is no row for {row}"
            continue
        there = {f for _, found, _ in named(parts_of(text)[0][0], texts) for f in found}
        listing = {f for f, t in code.items() if any(k.row == row and k.lists(t) for k in all_kinds)}
        excepted = left.get(row, {}).keys()
        for f in sorted(listing - there - excepted):
            yield line, f"{row}: {f} lists the members of the kind; name it in this row"
        for f in sorted(excepted - listing):
            yield line, f"{row}: {f} does not list the members of the kind; this check excepts it in vain"


def map_findings(text, page, texts):
    """(line, text) of files in the table of additions of the map, a text, that the page does not name."""
    there = {f for _, t in rows_of(page).values() for part, root in parts_of(t) for _, found, _ in named(part, texts, root) for f in found}
    before, heading, table = text.partition("\n## How to add\n")
    if not heading:
        yield 1, "there is no table of additions"
    for row, (line, cells) in rows_of(table).items():
        for name, found, _ in named(cells, texts):
            if not set(found) & there:
                yield line + before.count("\n") + 2, f"{row}: {name} is not in {PAGE}"


def self_test():
    core = "#define OURO_DTYPES(X) \\\n" + " \\\n".join(f"  X({t}, 1)" for t in "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16".split())
    core += "\n\n#define OURO_OPS(X) " + " ".join(f"X({o}, 1)" for o in "sum prod max min avg premul band bor bxor".split())
    core += "\nenum class Collective : char {\n  none,\n" + "".join(f"  {c},\n" for c in OPERATIONS) + "};\n"
    page = "| what | files |\n|---|---|\n| a dtype | `a/x.h` (`f`), `y.cc`. Tests: `t.cc` |\n| a reduction | `a` (all of `x.h`) |\n| an operation | `y.cc` |\n"
    texts = {"a/x.h": "switch (t) { case DType::f16: case OpKind::sum: f(); }", "a/y.cc": "OURO_DTYPES(X) " + " ".join(OPERATIONS), "tests/k/t.cc": "", "b/z.h": ""}
    on_map = "\n## How to add\n\n| what | files |\n|---|---|\n| a dtype | `a/x.h`, `y.cc` |\n"
    all_kinds = kinds(core)

    def said(page=page, texts=texts, left=EXCEPT, on_map=on_map):
        return [*page_findings(page, texts), *kind_findings(page, texts, texts, all_kinds, left), *map_findings(on_map, page, texts)]

    wrong = [f"a page that fits is called wrong: {said()}"] if said() else []
    for extra in ("case DType::f16:", "OURO_OPS(X)", "ncclSum, ncclProd, ncclMax, ncclMin", "at::kHalf at::kFloat64 at::kBFloat16",
                  "OURO_DTYPE_F32 f64 i8 i16 i32 i64 u8 u16 u32", "'sum', 'prod', 'max', 'min', 'band', 'bor'",
                  "ncclAllReduce ncclAllGather ncclBroadcast allreduce gather scatter reduce"):
        if len(said(texts=texts | {"b/z.h": extra})) != 1:
            wrong.append(f"a file is not found: {extra}")
        if said(texts=texts | {"b/z.h": extra}, left={k.row: {"b/z.h": "why"} for k in all_kinds if k.lists(extra)}):
            wrong.append(f"an excepted file is reported: {extra}")
    if said(texts=texts | {"b/z.h": "i8 i16 i32 i64 u8 u16 u32 u64 bool sum max min avg gather scatter reduce broadcast barrier"}):
        wrong.append("a file that lists no kind is reported")
    if not said(left={"a dtype": {"b/z.h": "why"}}):
        wrong.append("an exception in vain is not reported")
    for old, new in (("a/x.h", "a/gone.h"), ("(`f`)", "(`g`)"), ("t.cc", "u.cc"), (", `y.cc`", ""), ("an operation", "another")):
        if not said(page.replace(old, new)):
            wrong.append(f"not reported: {new or 'a name that is removed'}")
    for new in ("b/z.h", "a/gone.h"):
        if not said(on_map=on_map.replace("a/x.h", new)):
            wrong.append(f"not reported on the map: {new}")
    return wrong


OPERATIONS = "all_reduce all_gather reduce_scatter broadcast all_to_all gather scatter reduce barrier".split()  # of the self-test


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: additions.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    texts = {p.as_posix(): (root / p).read_text(errors="replace") for p in tree.files(root, (*tree.CODE_FOLDERS, "docs"), TEXTS)}
    code = {f: tree.without_comments(t) if f.endswith(tuple(tree.SOURCE_SUFFIXES)) else re.sub(r"#.*", "", t)
            for f, t in texts.items() if f.startswith(PRODUCT) and (root / f).suffix in CODE}
    if len(code) < 500:
        sys.exit(f"{len(code)} sources: this check reads the tree wrongly")
    page = (root / PAGE).read_text()
    found = [(PAGE, *f) for f in (*page_findings(page, texts), *kind_findings(page, texts, code, kinds((root / CORE).read_text())))]
    found += [(MAP, *f) for f in map_findings((root / MAP).read_text(), page, texts)]
    for name, line, text in found:
        print(f"{name}:{line}: {text}")
    print(f"{len(code)} sources, {len(found)} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
