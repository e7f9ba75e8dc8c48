# The table of operations and the declarations of functions as doors.py and members.py read them.
import re


class Operation:
    """A row of the table, in its even or its uneven form."""

    def __init__(self, cells, uneven=False):
        self.row, in_shape, in_owner, out_shape, out_owner, terms, _, self.counts = cells
        self.uneven = uneven
        self.name = self.row + "_v" * uneven
        self.moves = in_shape != "nothing" or out_shape != "nothing"
        self.many = (in_shape == "blocks", out_shape == "blocks")  # of the input, of the output
        self.of_root = (in_owner == "root", out_owner == "root")
        self.region = in_shape == "region"
        self.rooted = "root" in (in_owner, out_owner)
        self.neighbours = terms == "row"
        self.reduces = terms == "ranks"

    def lists(self):
        """The names of its lists of counts."""
        if not self.uneven:
            return []
        return ["send_counts", "recv_counts"] if all(self.many) else ["counts"]


def operations(text):
    rows = re.findall(r"^  X\((\w+(?:, *\w+){7})\)", text, re.MULTILINE)
    for row in rows:
        cells = re.split(r", *", row)
        if cells[0] == "none":
            continue
        yield Operation(cells)
        if cells[-1] == "lists":
            yield Operation(cells, uneven=True)


def arguments(text):
    """The parts of a list at its outermost commas."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "(<[{") - (c in ")>]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [re.sub(r"\s+", " ", p).strip() for p in parts if p.strip()]


TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|[(){}]')


def closing(text, position):
    """The position of the bracket that closes the one at `position`; strings are skipped."""
    depth = 0
    for token in TOKEN.finditer(text, position):
        depth += (token[0] in "({") - (token[0] in ")}")
        if depth == 0 and token[0] in ")}":
            return token.start()
    raise ValueError(f"no closing bracket: {text[position : position + 60]}")


class Declaration:
    """A function that an interface declares or defines: where it is in the text of its file, its name and arguments."""

    def __init__(self, file, text, begin, opening, name):
        self.file, self.begin, self.opening, self.name = file, begin, opening, name
        self.end = closing(text, opening)
        self.arguments = arguments(text[opening + 1 : self.end])


def declared(file, text, pattern):
    """Those that match a pattern whose group is the name and whose end is behind the opening bracket."""
    for match in re.finditer(pattern, text):
        yield Declaration(file, text, match.start(), match.end() - 1, match[1])


def body_of(text, declaration):
    opening = text.index("{", declaration.end)
    return text[opening : closing(text, opening) + 1]


def body_behind(text, head):
    """The first block that begins behind a match of `head`: its begin and end."""
    begin = re.search(head, text)
    if not begin:
        return None
    opening = text.index("{", begin.start())
    return opening, closing(text, opening)
