# Checks that the documents agree with the tree: code of the guide is in the examples, links have a target, every
# example is listed in the tutorials, the files and identifiers exist that ARCHITECTURE.md, the design pages and the
# decision records name, records have their form, and ARCHITECTURE.md and the README are as short as required.
# Usage: papers.py ROOT. Exits with 1 and prints a line for each finding.
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(?:cpp|c)\n(.*?)^```$", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`([^`\n]+)`")
SOURCE = re.compile(r"\.(?:h|hpp|cc|cu|py|sh|svg)$")
SOURCES = ("runtime", "kernels", "transport", "api", "tests", "tools", "bench")
# Ten minutes of reading. Of ARCHITECTURE.md half is tables, of which one looks up a row: walks, words, what to add.
LONGEST = {"README.md": ("lines", 207), "ARCHITECTURE.md": ("bytes", 18 << 10)}
HEADING = re.compile(r"^#+ (.*)$", re.M)
NAMES_CHECKED = ("docs/decisions", "docs/design")  # and ARCHITECTURE.md
# Names that pages use and the sources do not: of other projects, and of builds.
FOREIGN = {"CU_STREAM_WAIT_VALUE_FLUSH", "PAGEMAP_SCAN", "OURO_TUNER_FILE", "asan", "tsan", "dlpack.h", "shfl", "shm_open"}
DECIDED = re.compile(r"^\*Decided (\d{4}-\d\d-\d\d)(?:, changed \d{4}-\d\d-\d\d(?: and \d{4}-\d\d-\d\d)*)?\.\*$")
PARTS = ["Context", "Decision", "Alternatives", "Consequence"]
LONGEST_RECORD = 60  # lines
LONGEST_SENTENCE = 45  # words; aim at 30
SENTENCES_CHECKED = ("docs/design", "docs/design/twins", "docs/limits.md")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
ENDS = re.compile(r"(?<=[.?!])[)\"*_]*\s+")


def squeezed(text):
    return " ".join(text.split())


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def anchors(text):
    """The anchors of a page's headings."""
    titles = HEADING.findall(FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def strange_code(text, sources):
    """(line, what) of code blocks that no example contains, ignoring line breaks."""
    for found in BLOCK.finditer(text):
        code = squeezed(found[1])
        if not any(code in source for source in sources):
            yield line_of(text, found.start()), "this code is not in api/examples"


def broken_links(text, page, read):
    """(line, what) of broken relative links; read(path) returns the text of a page, None if there is no such file."""
    plain = FENCED.sub(lambda m: "\n" * m[0].count("\n"), text)
    for found in LINK.finditer(plain):
        target, _, anchor = found[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = text if not target else read((page.parent / target))
        if there is None:
            yield line_of(plain, found.start()), f"{found[1]} leads nowhere"
        elif anchor and anchor not in anchors(there):
            yield line_of(plain, found.start()), f"{found[1]}: there is no such heading"


def strange_names(text, files, words):
    """(line, what) of names in backticks that are neither files (whole path, or its end) nor words of the sources."""
    plain = FENCED.sub(lambda m: "\n" * m[0].count("\n"), text)
    for found in NAMED.finditer(plain):
        name = found[1]
        if "*" in name or " " in name or name in FOREIGN or name.startswith("CMAKE_"):
            continue
        if SOURCE.search(name) and not name.startswith("."):
            if not any(f == name or f.endswith("/" + name) for f in files):
                yield line_of(plain, found.start()), f"{name}: there is no such file"
        elif re.fullmatch(r"[A-Za-z_]\w*(?:::\w+)*(?:=\w+)?", name):
            if missing := [w for w in re.split(r"::|=", name) if w not in words]:
                yield line_of(plain, found.start()), f"{name}: {missing[0]} is no word of the sources"


def sources_of(root):
    """(names of all files, all words in sources) of the tree."""
    files = [str(p.relative_to(root)) for top in (*SOURCES, "docs") for p in (root / top).rglob("*") if p.is_file()]
    words = set()
    for name in files:
        if SOURCE.search(name) or name.endswith(("CMakeLists.txt", ".cmake")):
            words.update(re.findall(r"\w+", (root / name).read_text(errors="replace")))
    return files, words


def record_flaws(name, text, table):
    """(line, what) of a decision record that has not the form of the others; table: the list of all records."""
    lines = text.splitlines()
    decided = DECIDED.match(lines[2]) if len(lines) > 2 else None
    if not lines[0].startswith(f"# {name[:4]} "):
        yield 1, f"the title should begin with {name[:4]}"
    if not decided:
        yield 3, "expected *Decided YYYY-MM-DD.*, or *Decided YYYY-MM-DD, changed YYYY-MM-DD.*"
    elif f"| [{lines[0][2:]}]({name}) | {decided[1]} | " not in table:
        yield 1, "README.md has no row with this title, file and date"
    if HEADING.findall(text)[1:] != PARTS:
        yield 1, f"the sections should be {', '.join(PARTS)}"
    elif "\n- *" not in text.split("## Alternatives")[1].split("## ")[0]:
        yield 1, "there is no alternative"
    if len(lines) > LONGEST_RECORD:
        yield 1, f"{len(lines)} lines; expected at most {LONGEST_RECORD}"


def too_long(name, text):
    unit, most = LONGEST.get(name, ("bytes", 1 << 30))
    size = len(text.encode()) if unit == "bytes" else text.count("\n")
    return [(1, f"{size} {unit}; expected at most {most}")] if size > most else []


def sentences(text):
    """(line of its paragraph, sentence) outside of code, tables and headings. An item of a list begins a sentence."""
    paragraph, first = [], 0
    plain = LINK.sub(lambda m: m[0][1:m[0].index("](")], FENCED.sub(lambda m: "\n" * m[0].count("\n"), text))
    for number, line in enumerate([*plain.splitlines(), ""], 1):
        begins, outside = ITEM.match(line), not line.strip() or line.lstrip().startswith(("|", "#"))
        if begins or outside:
            for sentence in ENDS.split(" ".join(paragraph)):
                yield first, sentence
            paragraph = []
        if not outside:
            first = first if paragraph else number
            paragraph.append(line[begins.end():] if begins else line.strip())


def long_sentences(text):
    """(line, what) of sentences with too many words."""
    for line, sentence in sentences(text):
        if (count := len(re.findall(r"\S*\w\S*", sentence))) > LONGEST_SENTENCE:
            begin = " ".join(sentence.split()[:6])
            yield line, f"a sentence of {count} words, at most {LONGEST_SENTENCE}; divide it: \"{begin} ...\""


def self_test():
    page, tree = Path("docs/a.md"), {Path("docs/b.md"): "# A `b` page\n"}
    read = tree.get
    wrong = []
    if list(strange_code("```cpp\nf(1,\n  2);\n```\n", ["x; f(1, 2); y;"])):
        wrong.append("code of an example is called strange")
    if not list(strange_code("```cpp\nf(3);\n```\n", ["f(1);"])):
        wrong.append("strange code is not found")
    for text, bad in (("[b](b.md)", False), ("[b](b.md#a-b-page)", False), ("[x](https://x.y/z)", False), ("```\n[c](c.md)\n```", False),
                      ("[c](c.md)", True), ("[b](b.md#no)", True), ("[a](#nothing)", True)):
        if bool(list(broken_links(text, page, read))) != bad:
            wrong.append(f"link wrongly judged: {text}")
    for text, bad in (("`ring.h` `flow/ring.h` `Group::run` `A=b`", False), ("`ing.h`", True), ("`Group::walk`", True), ("`x y`", False)):
        if bool(list(strange_names(text, ["kernels/flow/ring.h"], {"Group", "run", "A", "b"}))) != bad:
            wrong.append(f"name wrongly judged: {text}")
    record = "# 0001 A\n\n*Decided 2026-01-02.*\n\n## Context\n\n## Decision\n\n## Alternatives\n\n- *b*: c.\n\n## Consequence\n"
    table = "| [0001 A](0001-a.md) | 2026-01-02 | d |"
    if list(record_flaws("0001-a.md", record, table)):
        wrong.append("a good record is called wrong")
    for old, new in (("# 0001", "# 0002"), ("Decided 2026", "Decided in 2026"), ("01-02", "01-03"), ("## Decision\n", ""), ("- *b*: c.\n", ""),
                     ("## Consequence\n", "## Consequence\n" + 60 * "\n")):
        if not list(record_flaws("0001-a.md", record.replace(old, new), table)):
            wrong.append(f"record wrongly judged: {new}")
    words = "word " * LONGEST_SENTENCE
    for text, bad in ((words, False), (words + "more", True), (f"{words}.\n{words}", False), (f"- {words}\n- {words}", False),
                      (f"{words}\n{words}", True), (f"{words}[a b](c.md)", True), (f"```\n{words}{words}\n```", False),
                      (f"| {words} | {words} |", False), (f"## {words}\n{words}", False), (f"{words}\n\n{words}", False)):
        if bool(list(long_sentences(text))) != bad:
            wrong.append(f"length of a sentence wrongly judged: {text[:20]}")
    if not too_long("README.md", "\n" * 208) or too_long("README.md", "\n" * 207):
        wrong.append("lengths are wrongly judged")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: papers.py ROOT")
    if wrong := self_test():
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = Path(sys.argv[1])
    examples = sorted(p for p in (root / "api/examples").iterdir() if p.suffix in (".cc", ".c"))
    sources = [squeezed(p.read_text()) for p in examples]

    def read(path):
        if path.is_dir():
            return ""
        return path.read_text(errors="replace") if path.is_file() else None

    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("bench/**/*.md")]
    if len(examples) < 8 or len(pages) < 20:
        sys.exit(f"{len(examples)} examples and {len(pages)} papers: this check reads the tree wrongly")
    files, words = sources_of(root)
    decisions = (root / "docs/decisions/README.md").read_text()
    found = []
    for page in pages:
        text = page.read_text()
        folder = str(page.parent.relative_to(root))
        if page == root / "ARCHITECTURE.md" or folder in NAMES_CHECKED:
            found += [(page, *f) for f in strange_names(text, files, words)]
        if folder == "docs/decisions" and page.name != "README.md":
            found += [(page, *f) for f in record_flaws(page.name, text, decisions)]
        if page.parent == root:
            found += [(page, *f) for f in too_long(page.name, text)]
        if {folder, str(page.relative_to(root))} & set(SENTENCES_CHECKED):
            found += [(page, *f) for f in long_sentences(text)]
        found += [(page, *f) for f in broken_links(text, page, read)]
        if page.parent == root / "docs/guide":
            found += [(page, *f) for f in strange_code(text, sources)]
    tutorials = (root / "docs/tutorials.md").read_text()
    for example in examples:
        if f"(../api/examples/{example.name})" not in tutorials or f"example-{example.stem.replace('_', '-')}`" not in tutorials:
            found.append((root / "docs/tutorials.md", 1, f"{example.name} is not listed, or not with its command"))
    for page, line, what in found:
        print(f"{page.relative_to(root)}:{line}: {what}")
    print(f"{len(pages)} papers, {len(found)} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
