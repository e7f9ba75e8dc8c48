# Checks that the tables of element types and reductions that interfaces keep in the spelling of another language or library
# name every member of the lists in runtime/core/types.h. Usage: members.py ROOT. Exits with 1 and prints a line for each
# member that is missing.
import re
import sys
from pathlib import Path

import tree
from signatures import body_behind

TYPES = "runtime/core/types.h"
# The list of the core, the file that names its members one by one, the head of the block there, how a member is written,
# and those that are absent, with the reason.
NO_NCCL, NO_C10D = "NCCL has none", "c10d has none"
MEMBERS = (
    ("OURO_DTYPES", "api/src/dlpack.cc", r"DLDataType dl_type\(", r"\bDType::(\w+)", {}),
    ("OURO_DTYPES", "api/nccl/reductions.cc", r"> dtype_of\(", r"\bDType::(\w+)", {"i16": NO_NCCL, "u16": NO_NCCL, "boolean": NO_NCCL}),
    ("OURO_DTYPES", "api/python/src/array.cc", r"namespace \{", r"\bDType::(\w+)", {}),
    ("OURO_DTYPES", "api/python/ouro/torch/adapter/tensors.cc", r"Elements elements\(", r"\bDType::(\w+)", {}),
    ("OURO_DTYPES", "api/include/ouro/ouro_values.h", r"typedef int ouro_dtype_t;\s*enum \{", r"\bOURO_DTYPE_(\w+)", {}),
    ("OURO_OPS", "api/include/ouro/ouro_values.h", r"typedef int ouro_op_kind_t;\s*enum \{", r"\bOURO_OP_(\w+)", {}),
    ("OURO_OPS", "api/python/src/errors.cc", r"ReduceOp reduction\(", r"'(\w+)'|\b(premul)\(", {}),
    ("OURO_OPS", "api/python/ouro/torch/adapter/tensors.cc", r"ReduceOp reduction\(", r"return ReduceOp::(\w+)",
     {"land": NO_C10D, "lor": NO_C10D, "lxor": NO_C10D}),
    ("OURO_OPS", "api/nccl/reductions.cc", r"ncclResult_t set_reduction\(", r"ReduceOp::(\w+)|\b(mine)\.op",
     {"band": NO_NCCL, "bor": NO_NCCL, "bxor": NO_NCCL, "land": NO_NCCL, "lor": NO_NCCL, "lxor": NO_NCCL}),
)
# premulsum has a factor, so it is written in another way.
SPELLINGS = {"premul": "premulsum", "mine": "premulsum"}  # NCCL's user-defined reductions are those


def list_of(texts, macro):
    """The enumerators of a list of types.h."""
    return re.findall(r"\bX\((\w+),", texts[TYPES].partition(f"#define {macro}(X)")[2].partition("\n\n")[0])


def findings(texts):
    for macro, file, head, pattern, absent in MEMBERS:
        listed, block = list_of(texts, macro), body_behind(texts[file], head)
        if not block or len(listed) < 12:
            yield f"{file}: {head} is not found, or {macro} is not"
            continue
        found = {"".join(m.groups("")).lower() for m in re.finditer(pattern, texts[file][slice(*block)])}
        found = {SPELLINGS.get(name, name) for name in found}
        for name in listed:
            if (name in found) == (name in absent):
                yield f"{file}: {head}: {name} of {macro} is {'there, and said to be absent' if name in found else 'missing'}"


def self_test(texts):
    """Removes each member once; returns what was not found."""
    wrong = []
    for _, file, head, pattern, _ in MEMBERS:
        begin, end = body_behind(texts[file], head)
        for match in re.finditer(pattern, texts[file][begin:end]):
            name, body = match[0], texts[file][begin:end]
            gone = re.sub(re.escape(name) + r"(?!\w)" * name[-1].isalnum(), "", body)
            if not list(findings(texts | {file: texts[file][:begin] + gone + texts[file][end:]})):
                wrong.append(f"not found: {name} is missing in {file}, {head}")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: members.py ROOT")
    root = Path(sys.argv[1])
    texts = {f: tree.without_comments((root / f).read_text()) for f in {TYPES, *(row[1] for row in MEMBERS)}}
    if found := list(findings(texts)):
        sys.exit("\n".join(found))
    if wrong := self_test(texts):  # it removes members of the files as they are
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    print(f"{len(MEMBERS)} lists of members")


if __name__ == "__main__":
    main()
