# Checks that every interface offers the operations of the table in runtime/core/collectives.h with the arguments that the
# table gives them: buffers in order, counts, a reduction, a root. Usage: doors.py ROOT. Exits with 1 and prints a line for
# each difference.
import re
import sys
from pathlib import Path

import tree
from signatures import Declaration, body_of, closing, declared, operations

TABLE = "runtime/core/collectives.h"
C_HEADER, C_SOURCE = "api/include/ouro/ouro.h", "api/src/c_operations.cc"
CXX_HEADER, CXX_SOURCE = "api/include/ouro/operations.hpp", "api/src/operations.cc"
PYTHON = "api/python/src/operations.cc"
NCCL_HEADER, NCCL_SOURCE = "api/nccl/nccl.h", "api/nccl/operations.cc"
NCCL_EXPORTS = ("api/nccl/package/nccl.map", "tests/api/nccl/exports.txt")
TORCH_HEADER, TORCH_SOURCE = "api/python/ouro/torch/adapter/backend.h", "api/python/ouro/torch/adapter/collectives.cc"

# Operations that an interface does not offer, with the reason. `_v` is the uneven form.
ABSENT = {
    "C": {"mix": "weights and rows have no form in C yet; ouro.h says so"},
    "C++": {},
    "Python": {"mix": "trainers call it"},
    "NCCL": {
        "mix": "NCCL has none",
        "barrier": "NCCL has none",
        "reduce_scatter_v": "NCCL has none",
        "all_gather_v": "NCCL has none",
        "all_to_all_v": "NCCL has none",
    },
    "torch": {
        "mix": "c10d has none",
        "all_to_all": "c10d states the sizes of all blocks, so that its calls are all_to_all_v",
    },
}
# Operations that Python and torch call with one array, which is input and output.
ONE_ARRAY = {"broadcast": "the root's x is copied into the x of every rank"}
# The names of other libraries.
NCCL_NAMES = {"all_to_all": "AlltoAll"}
TORCH_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}
TORCH_OPTIONS = {"all_reduce": "Allreduce", "all_gather": "Allgather", "all_to_all": "AllToAll"}


def compare(door, operation, expected, found):
    if expected != found:
        yield f"{door}: {operation}: expected ({', '.join(expected)}), found ({', '.join(found)})"


def presence(door, known, found):
    """Findings on operations that are offered and should not be, or the reverse."""
    names = {o.name for o in known}
    for name in sorted(names - set(ABSENT[door]) - set(found)):
        yield f"{door}: {name} is missing"
    for name in sorted(set(found) & set(ABSENT[door])):
        yield f"{door}: {name} is offered, and said to be absent: {ABSENT[door][name]}"
    for name in sorted(set(found) - names):
        yield f"{door}: {name} is not in the table"
    for name in sorted(set(ABSENT[door]) - names):
        yield f"{door}: {name} is said to be absent, and is not in the table"


def chosen(*choices):
    return [text for wanted, text in choices if wanted]


# ---- the interfaces: each has files, declarations and findings ----


class C:
    files = (C_HEADER, C_SOURCE)

    @staticmethod
    def declarations(texts, known):
        names = {o.name for o in known}
        for d in declared(C_HEADER, texts[C_HEADER], r"OURO_API int ouro_(\w+)\("):
            if d.name in names or "const void* in" in d.arguments:
                yield d

    @staticmethod
    def findings(texts, known):
        offered = {d.name: d for d in C.declarations(texts, known)}
        yield from presence("C", known, offered)
        defined = {d.name: d for d in declared(C_SOURCE, texts[C_SOURCE], r"\nint ouro_(\w+)\(")}
        for o in (o for o in known if o.name in offered):
            counts = [f"const size_t* {name}" for name in o.lists()] or ["size_t count"]
            buffers = ["const void* in", "void* out", *counts, "ouro_dtype_t dtype"] if o.moves else []
            expected = ["ouro_group_t group", *buffers]
            expected += chosen((o.reduces, "ouro_op_t op"), (o.rooted, "int root"), (o.moves, "const ouro_call_options_t* options"))
            yield from compare("C", o.name, expected + ["ouro_stream_t stream", "ouro_work_t* work"], offered[o.name].arguments)
            if o.name not in defined:
                yield f"C: {o.name} is not defined in {C_SOURCE}"
                continue
            body = body_of(texts[C_SOURCE], defined[o.name])
            if not re.search(rf"\b{o.name}\((c\.group\(\)|group->get\(\)), ", body):
                yield f"C: {o.name} does not call ouro::{o.name}"
            if o.moves and not o.uneven and f"Collective::{o.row}," not in body:
                yield f"C: {o.name} does not take the lengths of its buffers from the row {o.row}"


class Cxx:
    files = (CXX_HEADER, CXX_SOURCE)
    pattern = r"(?:Status|Result<Work>) (\w+)\("

    @staticmethod
    def declarations(texts, known):
        yield from declared(CXX_HEADER, texts[CXX_HEADER], "OURO_API " + Cxx.pattern)

    @staticmethod
    def expected(o, stream):
        one = [f"std::span<const std::size_t> {name}" for name in o.lists()]
        row = ["double self", "std::span<const std::pair<int, double>> in_neighbours", "std::span<const int> out_neighbours"]
        return ["Group&"] + (["CView in", "View out", *one] if o.moves else []) + chosen(
            (o.reduces, "ReduceOp"), (o.rooted, "int root")) + (row if o.neighbours else []) + chosen(
            (stream, "const Stream&"), (not o.neighbours, "const CallOptions&"))

    @staticmethod
    def made(o):
        """How its definition makes an Operation."""
        if o.neighbours:
            return f"make_{o.row}(in, out, self, in_neighbours, out_neighbours)"
        buffers = "in, out" if o.moves else "{}, {}"
        lists = [] if not o.uneven else o.lists() if all(o.many) else ["counts", "{}"] if o.many[0] else ["{}", "counts"]
        end = ["op"] if o.reduces else ["{}"] if o.rooted else []
        parts = [f"Collective::{o.row}", buffers, *lists, "o", *end, *chosen((o.rooted, "root"))]
        return f"make{'_v' * o.uneven}({', '.join(parts)})"

    @staticmethod
    def findings(texts, known):
        offered = {}
        for d in Cxx.declarations(texts, known):
            offered.setdefault(d.name, []).append([a.partition(" =")[0] for a in d.arguments])
        yield from presence("C++", known, offered)
        defined = {}
        text = texts[CXX_SOURCE].partition("Status all_reduce(")
        for d in declared(CXX_SOURCE, text[1] + text[2], "\n?" + Cxx.pattern):
            defined.setdefault(d.name, []).append(body_of(text[1] + text[2], d))
        for o in (o for o in known if o.name in offered):
            both = [Cxx.expected(o, False), Cxx.expected(o, True)]
            if len(offered[o.name]) != 2:
                yield f"C++: {o.name} has {len(offered[o.name])} forms; expected one without a stream and one with it"
            for expected, found in zip(both, offered[o.name]):
                yield from compare("C++", o.name, expected, found)
            bodies = [re.sub(r"\s+", " ", b) for b in defined.get(o.name, [])]
            for way in ("run(g, ", "enqueue(g, "):
                if not any(way in b and Cxx.made(o) in b for b in bodies):
                    yield f"C++: {o.name} has no definition with {way}...) of {Cxx.made(o)}"


class Python:
    files = (PYTHON,)

    @staticmethod
    def declarations(texts, known):
        for d in declared(PYTHON, texts[PYTHON], r'\.def\(\s*"(\w+)",'):
            d.opening = texts[PYTHON].index("(", d.begin)
            d.end = closing(texts[PYTHON], d.opening)
            d.arguments = arguments_of_binding(texts[PYTHON][d.opening + 1 : d.end])
            yield d

    @staticmethod
    def findings(texts, known):
        text = texts[PYTHON]
        offered = {d.name: d for d in Python.declarations(texts, known)}
        uneven = {o.row: o for o in known if o.uneven}
        calls = {name for name in re.findall(r"\b(\w+_v)\(g, ", text)}
        yield from presence("Python", known, set(offered) | calls)
        for o in (o for o in known if o.name in offered):
            lists = uneven[o.row].lists() if o.row in uneven else []
            names = (["x"] if o.name in ONE_ARRAY else ["x", "out"]) if o.moves else []
            names += chosen((o.rooted, "root"), (o.reduces, "op")) + lists
            expected = names + ["kw_only", "stream"] + chosen((o.reduces, "numerics"), (o.moves, "algorithm"))
            binding = text[offered[o.name].opening : offered[o.name].end]
            found = [a for a in offered[o.name].arguments if re.fullmatch(r"\w+", a)]
            yield from compare("Python", o.name, expected, found)
            function = re.search(r"&(\w+)", binding) if o.moves else None
            if function:  # the parameters of the bound function have the names of the arguments
                d = next(declared(PYTHON, text, rf"nb::object ({function[1]})\("), None)
                if not d:
                    yield f"Python: {o.name}: the function {function[1]} is not found"
                    continue
                names = [a.split()[-1].lstrip("*&").replace("numerics_name", "numerics") for a in d.arguments[1:]]
                yield from compare("Python", f"{o.name}, the function {d.name}", [n for n in expected if n != "kw_only"], names)
                binding = body_of(text, d)
            for form in [o, *chosen((o.row in uneven, uneven.get(o.row)))]:
                pointers = "".join(rf"\*{name}, " for name in form.lists())
                buffers = "b, b, " if o.name in ONE_ARRAY else "a, b, " if o.moves else ""
                end = "".join(chosen((o.reduces, "how, "), (o.rooted, "root, ")))
                if not re.search(rf"\b{form.name}\(g, {buffers}{pointers}{end}s\.\.\.", binding):
                    yield f"Python: {o.name} does not call ouro::{form.name} with its arguments in order"


def arguments_of_binding(text):
    """The names of the arguments of a .def, and kw_only."""
    strings = re.finditer(r'"((?:\\.|[^"\\])*)"(_a)?|kw_only', text)
    return [m[1] or m[0] for m in strings if m[2] or m[0] == "kw_only"]


class Nccl:
    files = (NCCL_HEADER, NCCL_SOURCE, *NCCL_EXPORTS)

    @staticmethod
    def name(o):
        return NCCL_NAMES.get(o.name) or "".join(part.capitalize() for part in o.name.split("_"))

    @staticmethod
    def declarations(texts, known):
        for file, macro in ((NCCL_HEADER, "OURO_NCCL_DECLARE_COLLECTIVE"), (NCCL_SOURCE, "OURO_NCCL_COLLECTIVE")):
            for match in re.finditer(rf"\n{macro}(\()", texts[file]):
                d = Declaration(file, texts[file], match.start(), match.end() - 1, "")
                d.name = d.arguments[0]
                yield d

    @staticmethod
    def findings(texts, known):
        names = {Nccl.name(o): o for o in known}
        headers, sources = ({d.name: d for d in Nccl.declarations(texts, known) if d.file == f} for f in Nccl.files[:2])
        yield from presence("NCCL", known, {names[n].name if n in names else n for n in {*headers, *sources}})
        for name, o in ((n, o) for n, o in names.items() if n in headers or n in sources):
            if name not in headers or name not in sources:
                yield f"NCCL: {name} is not in both {NCCL_HEADER} and {NCCL_SOURCE}"
                continue
            found = headers[name].arguments[1:]
            count = next((c for c in ("count", "sendcount", "recvcount") if f"size_t {c}" in found), "count")
            expected = ["const void* sendbuff", "void* recvbuff", f"size_t {count}", "ncclDataType_t datatype"]
            expected += chosen((o.reduces, "ncclRedOp_t op"), (o.rooted, "int root"))
            yield from compare("NCCL", name, expected, found)
            passed = [o.row, count, f"({', '.join(expected)})"] + chosen((o.rooted, ".root = root"), (o.reduces, ".op = op"))
            yield from compare("NCCL", f"{name} in {NCCL_SOURCE}", passed, sources[name].arguments[1:])
            for file in NCCL_EXPORTS:
                for symbol in (f"nccl{name}", f"nccl{name}Config"):
                    if not re.search(rf"\b{symbol}\b", texts[file]):
                        yield f"NCCL: {symbol} is not in {file}"


class Torch:
    files = (TORCH_HEADER, TORCH_SOURCE)

    @staticmethod
    def declarations(texts, known):
        names = {TORCH_NAMES.get(o.row, o.row) for o in known}
        for d in declared(TORCH_HEADER, texts[TORCH_HEADER], r"\n  WorkPtr (\w+)\("):
            if d.name in names:
                yield d
        yield from declared(TORCH_SOURCE, texts[TORCH_SOURCE], r"\bouro::([a-z_]+)\(")

    @staticmethod
    def findings(texts, known):
        everything = list(Torch.declarations(texts, known))
        overridden = {d.name: d for d in everything if d.file == TORCH_HEADER}
        called = [d for d in everything if d.file == TORCH_SOURCE]
        yield from presence("torch", known, {d.name for d in called})
        for o in (o for o in known if not o.uneven and o.row not in set(ABSENT["torch"]) - {"all_to_all"}):
            name = TORCH_NAMES.get(o.row, o.row)
            if name not in overridden:
                yield f"torch: {name} is not overridden in {TORCH_HEADER}"
                continue
            sides = [o.many[1], o.many[0]]  # c10d has outputs first
            if all(o.many) or o.region:  # a list of blocks on each side; one list of tensors in place
                sides = [False] * (1 if o.region else 2)
            options = TORCH_OPTIONS.get(o.row) or "".join(p.capitalize() for p in o.row.split("_"))
            expected = [f"{'Lists' if many else 'Tensors'}&" for many in sides] if o.moves else []
            yield from compare("torch", name, expected + [f"const c10d::{options}Options&"], overridden[name].arguments)
        by_name = {o.name: o for o in known}
        text = texts[TORCH_SOURCE]
        methods = [(d.begin, text[d.begin : d.end], body_of(text, d))
                   for d in declared(TORCH_SOURCE, text, r"\n(?:Backend::WorkPtr|Status) Backend::(\w+)\(")]
        for d in called:
            if d.name in by_name:
                _, head, body = [m for m in methods if m[0] < d.begin][-1]
                for what in Torch.call(by_name[d.name], d.arguments, head, body):
                    yield f"torch: {d.name}({', '.join(d.arguments)}): {what}"

    @staticmethod
    def call(o, found, head, body):
        """Findings on a call of ouro::o in the method with this head and body."""
        on_stream = "WorkPtr" in head  # else it runs in the calling thread
        if len(found) != 1 + 2 * o.moves + len(o.lists()) + o.reduces + o.rooted + on_stream or found[0] != "group_":
            yield "another number of arguments is expected"
            return
        lists = {0: [], 1: ["counts"], 2: ["sent|ins", "received|outs"]}[len(o.lists())]
        kinds = lists + chosen((o.reduces, r"\bop\b|\breduction\("), (o.rooted, r"\broot\b"), (on_stream, "^s$"))
        for wanted, argument in zip(kinds, found[1 + 2 * o.moves :]):
            if not re.search(wanted, argument):
                yield f"{argument} is not {wanted}"
        names = {"input": "in|ins|from", "output": "out|outs|target|to|own"}
        for argument, side, other, many, of_root in zip(found[1:3] * o.moves, names, reversed(names), o.many, o.of_root):
            mine = names[side] + "|all" * many
            if not o.region and (not re.search(rf"\b({mine})\b", argument) or re.search(rf"\b({names[other]})\b", argument)):
                yield f"{argument} is not its {side}"
            if of_root and o.row not in ONE_ARRAY and "View()" not in argument:
                yield f"{argument}: its {side} is not empty where only the root has one"
        for wanted, sign, what in ((o.rooted, "rootRank", "a root"), (o.reduces, "reduceOp", "a reduction")):
            if on_stream and wanted != bool(re.search(rf"\bo\.{sign}\b", body)):
                yield f"the method around it {'lacks' if wanted else 'has'} {what}"


DOORS = {"C": C, "C++": Cxx, "Python": Python, "NCCL": Nccl, "torch": Torch}
FILES = {TABLE, *(f for door in DOORS.values() for f in door.files)}


def findings(texts, doors=DOORS):
    known = list(operations(texts[TABLE]))
    if len(known) < 12:
        yield f"{TABLE} has {len(known)} operations: this check reads it wrongly"
    for door in doors.values():
        yield from door.findings(texts, known)


def plants(texts):
    """(description, changed texts, the interface that has to find the change): each function, and each argument of it, is
    removed once; neighbouring arguments change places once."""
    known = list(operations(texts[TABLE]))
    for name, door in DOORS.items():
        for d in door.declarations(texts, known):
            text = texts[d.file]

            def changed(what, begin, end, new):
                return f"{name}: {d.name} in {d.file}: {what}", texts | {d.file: text[:begin] + new + text[end:]}, name

            if not (name == "torch" and d.file == TORCH_SOURCE):  # where an operation may be called several times
                yield changed("removed", d.begin, d.end + 1, "")
            if name == "Python":
                spans = [m.span() for m in re.finditer(r'"\w+"_a(?:\.none\(\))?(?: = [^,)]+)?, ', text[d.opening : d.end])]
                spans = [(d.opening + a, d.opening + b) for a, b in spans]
                for i, (a, b) in enumerate(spans):
                    yield changed(f"without {text[a:b]}", a, b, "")
                    if i and spans[i - 1][1] == a:
                        first = spans[i - 1]
                        yield changed(f"{text[a:b]} before", first[0], b, text[a:b] + text[first[0] : first[1]])
                continue
            a = d.arguments
            for i in range(len(a)):
                yield changed(f"without {a[i]}", d.opening + 1, d.end, ", ".join(a[:i] + a[i + 1 :]))
                if i and a[i] != a[i - 1]:
                    yield changed(f"{a[i]} before", d.opening + 1, d.end, ", ".join(a[: i - 1] + [a[i], a[i - 1]] + a[i + 1 :]))


def self_test(texts):
    """Changes the files as plants() says, and the table; returns what was not found."""
    wrong, count = [], 0
    for what, planted, door in plants(texts):
        count += 1
        if not list(findings(planted, {door: DOORS[door]})):
            wrong.append(f"not found: {what}")
    if count < 500:
        wrong.append(f"{count} changes were planted: the declarations are not read")
    row = next(line for line in texts[TABLE].splitlines() if line.startswith("  X(gather,"))
    for what, new in (("another operation", row.replace("gather,", "scan,") + "\n" + row), ("no root", row.replace("root", "all ")),
                      ("a reduction", row.replace("none", "ranks")), ("lists of counts", row.replace("one)", "lists)"))):
        for door in DOORS:
            if not list(findings(texts | {TABLE: texts[TABLE].replace(row, new)}, {door: DOORS[door]})):
                wrong.append(f"not found: {door}: {what} in the table")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: doors.py ROOT")
    root = Path(sys.argv[1])
    texts = {f: (root / f).read_text() if f in NCCL_EXPORTS else tree.without_comments((root / f).read_text()) for f in FILES}
    if found := list(findings(texts)):
        sys.exit("\n".join(found))
    if wrong := self_test(texts):  # it plants its faults in the files as they are
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    print(f"{len(list(operations(texts[TABLE])))} operations, {len(DOORS)} interfaces")


if __name__ == "__main__":
    main()
