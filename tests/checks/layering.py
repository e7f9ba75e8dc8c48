# Which folder may include which. Usage: layering.py ROOT. Exits with 1 and prints a line for each include that is not
# allowed, and for each rule that no include needs any more.
#
# The rules are the rooms that the CMakeLists.txt of the library declare: ouro_room(FOLDER ... USES FOLDER...).
import graphlib
import pathlib
import re
import sys
import tempfile

import tree

CORE = "runtime/core"  # the ground: every room may include it
ROOM = re.compile(r"^ *ouro_room\(([^)]*)\)", re.MULTILINE)


def declarations(text):
    """(room, the rooms that it may include in addition to the core) for each ouro_room of a CMakeLists.txt."""
    for match in ROOM.finditer(re.sub(r"#.*", "", text)):
        room, *words = match[1].split()
        yield room, set(words[words.index("USES") + 1:] if "USES" in words else ())


def declared(root):
    """The declarations of all rooms, in any order."""
    return [found for folder in tree.LIBRARY_FOLDERS for path in sorted((root / folder).rglob("CMakeLists.txt"))
            for found in declarations(path.read_text())]


DECLARED = declared(pathlib.Path(__file__).resolve().parents[2])
ALLOWED = dict(DECLARED)
INNERMOST = sorted(ALLOWED, key=len, reverse=True)
OUTSIDE = ("tests", "bench", "tools")  # may include anything; only they themselves may include them
# Small libraries that tests, benches and other tools share.
SHARED_TOOLS = ("tools/chart", "tools/cli", "tools/measure", "tools/models", "tools/run")
PUBLIC = pathlib.PurePosixPath("api/include/ouro")
PUBLIC_OWN = {"runtime/core/status.h", "runtime/core/types.h"}
USERS_OWN = PUBLIC_OWN | {"runtime/core/float_mode.h"}  # trainers compute on their callers' threads
# Rooms of users of the interface: they include public headers, and only those of the core that these include.
USERS = ("api/train/", "api/examples", "api/python/")
CUDA_HEADERS = ("cuda", "nv/", "cub/", "thrust/", "cooperative_groups", "nvtx3/", "driver_types", "vector_types")


def floor(room):
    """The level of a room's top-level folder; the core is the ground."""
    return -1 if room == CORE else ("kernels", "transport", "runtime", "api").index(room.split("/")[0])


def room(path):
    """The room of a file, by its path from the root; None for a file outside of all rooms."""
    path = pathlib.PurePosixPath(path)
    for inner in INNERMOST:
        if path.is_relative_to(inner):
            return inner
    return path.parts[0] if len(path.parts) > 1 and path.parts[0] in OUTSIDE else None


def resolve(root, includer, name):
    """The path from the root of this project's file that an include names, or None."""
    for candidate in (root / name, root / "api/include" / name, (root / includer).parent / name):
        if candidate.is_file():
            return candidate.resolve().relative_to(root)
    first = pathlib.PurePosixPath(name)
    # It may name a room but no file: the compiler reports the missing file, and the room is checked here.
    return first if room(first) else None


def complaint(root, includer, bracket, name, used):
    includer = pathlib.PurePosixPath(includer)
    if includer.is_relative_to(PUBLIC):
        if bracket == "<" and name.startswith(CUDA_HEADERS):
            return "a public header includes a CUDA header"
        if bracket == "<" and "/" not in name and not name.endswith(".h"):
            return None  # the standard library
        if bracket == "<" and name in ("stddef.h", "stdint.h"):
            return None  # for C
        target = resolve(root, includer, name)
        if target and (target.as_posix() in PUBLIC_OWN or pathlib.PurePosixPath(target).is_relative_to(PUBLIC)):
            return None
        return "a public header includes more than the standard library, public headers, status.h and types.h"
    target = resolve(root, includer, name)
    mine = room(includer)
    if mine is None:
        return f"{includer} is in no room: no ouro_room declares its folder"
    if target is None:
        if bracket == '"' and mine not in OUTSIDE:
            return "in quotes, but no file of this project"
        return None
    if bracket == "<" and not pathlib.PurePosixPath(target).is_relative_to(PUBLIC):
        return "a file of this project in angle brackets"
    theirs = room(target.as_posix())
    if theirs in OUTSIDE:
        shared = any(target.as_posix().startswith(s + "/") for s in SHARED_TOOLS)
        same = target.parts[:2] == pathlib.Path(includer).parts[:2]
        if mine in OUTSIDE and (same or shared or mine == "tests" or mine == theirs == "bench"):
            return None
        return f"{target} is included by nobody outside its folder but tests"
    if theirs == CORE and mine.startswith(USERS) and target.as_posix() not in USERS_OWN:
        return f"{mine} knows of the core what public headers include: status.h and types.h"
    if mine in OUTSIDE or theirs in (mine, CORE):
        return None
    if theirs not in ALLOWED[mine]:
        return f"{mine} must not know {theirs}"
    used.add((mine, theirs))
    return None


def violations(root, used):
    for path in tree.files(root):
        for number, bracket, name in tree.includes((root / path).read_text()):
            why = complaint(root, path.as_posix(), bracket, name, used)
            if why:
                yield f"{path}:{number}: #include {name}: {why}"


def table_errors(table):
    """Checks the table itself: each room is declared once, and uses declared rooms that are not on a higher level;
    there is no circle."""
    names = [name for name, _ in table]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} is declared twice"
    for name, below in table:
        for other in sorted(below):
            if other not in names:
                yield f"{name} uses {other}, which is no room"
            elif floor(other) > floor(name):
                yield f"{name} may include {other}, which stands on a higher floor"
    try:
        graphlib.TopologicalSorter(dict(table)).prepare()
    except graphlib.CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def self_test_of_table():
    """Plants wrong tables; returns wrong verdicts."""
    read = list(declarations("# ouro_room(a)\nouro_room(kernels/arith)\n  ouro_room(kernels/host TARGET t  # (one)\n"
                             "  SOURCES\n    a.cc\n    b.cc  # no USES x\n  USES kernels/arith\n    kernels/flow)\n"))
    if read != [("kernels/arith", set()), ("kernels/host", {"kernels/arith", "kernels/flow"})]:
        yield f"declarations are read wrongly: {read}"
    arith, host = ("kernels/arith", set()), ("kernels/host", {"kernels/arith"})
    for planted, word in (([host, arith], None), ([arith, arith, host], "twice"), ([host], "no room"),
                          ([("kernels/arith", {"transport"}), ("transport", set())], "higher"),
                          ([("kernels/arith", {"kernels/host"}), host], "circle")):
        errors = list(table_errors(planted))
        if errors if word is None else len(errors) != 1 or word not in errors[0]:
            yield f"{planted}: {errors}, expected {word or 'none'}"


def self_test():
    """Self-test: plants one violation of each kind, and correct includes beside them; returns wrong verdicts."""
    planted = [
        ("runtime/core/a.h", '"transport/wire/w.h"', True),
        ("transport/wire/w.h", '"runtime/core/a.h"', False),
        ("transport/wire/x.h", '"kernels/flow/f.h"', True),
        ("kernels/flow/f.h", "<cstdint>", False),
        ("kernels/flow/g.h", '"runtime/plan/p.h"', True),
        ("kernels/arith/r.h", '"kernels/host/k.h"', True),
        ("kernels/host/k.h", '"transport/shm/t.h"', True),
        ("kernels/host/l.h", '"kernels/arith/r.h"', False),
        ("kernels/device/d.h", '"kernels/device/fake/f.h"', True),
        ("kernels/device/fake/f.h", '"kernels/device/d.h"', False),
        ("transport/shm/t.h", '"runtime/group/group.h"', True),
        ("transport/shm/u.h", '"kernels/device/d.h"', True),
        ("runtime/device_memory/u.h", '"kernels/device/d.h"', False),
        ("runtime/device_memory/v.h", '"runtime/context/c.h"', True),
        ("transport/net/tcp/v.h", '"transport/net/ucx/u.h"', True),
        ("transport/net/ucx/u.h", '"nowhere.h"', True),
        ("runtime/plan/p.h", '"runtime/group/group.h"', True),
        ("runtime/context/c.h", '"runtime/exec/host/e.h"', True),
        ("runtime/exec/host/e.h", '"runtime/context/c.h"', False),
        ("runtime/group/group.h", '"api/src/c.h"', True),
        ("runtime/group/host.h", '"runtime/exec/host/e.h"', False),
        ("runtime/group/tool.h", '"tools/run/l.h"', True),
        ("runtime/flat.h", "<vector>", True),
        ("api/src/c.h", '"runtime/group/group.h"', False),
        ("api/src/d.h", '"tests/t.h"', True),
        ("api/src/e.h", '"ouro/p.hpp"', False),
        ("api/src/f.h", "<runtime/group/group.h>", True),
        ("api/src/g.h", '"api/train/common/c.h"', True),
        ("api/train/common/c.h", '"ouro/p.hpp"', False),
        ("api/train/topology/t.h", '"runtime/group/group.h"', True),
        ("api/train/common/d.h", '"api/src/c.h"', True),
        ("api/train/common/e.h", '"runtime/core/log.h"', True),
        ("api/train/common/f.h", '"runtime/core/types.h"', False),
        ("api/train/optim/o.h", '"kernels/arith/r.h"', False),
        ("api/train/optim/p.h", '"runtime/stream/s.h"', True),
        ("api/examples/x.cc", '"ouro/p.hpp"', False),
        ("api/examples/y.cc", '"runtime/group/group.h"', True),
        ("api/include/ouro/p.hpp", '"runtime/core/status.h"', False),
        ("api/include/ouro/q.hpp", '"runtime/core/log.h"', True),
        ("api/include/ouro/r.hpp", "<cuda_runtime.h>", True),
        ("api/include/ouro/s.hpp", "<fmt/core.h>", True),
        ("api/include/ouro/t.hpp", '"ouro/p.hpp"', False),
        ("tests/t.h", '"runtime/group/group.h"', False),
        ("tools/run/l.h", '"runtime/core/a.h"', False),
        ("tools/perf/p.h", '"tools/run/l.h"', False),
        ("tools/perf/q.h", '"tools/info/i.h"', True),
        ("tools/info/i.h", "<vector>", False),
    ]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory).resolve()
        for name in ("runtime/core/status.h", "runtime/core/types.h", "runtime/core/log.h"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("#pragma once\n")
        for path, include, _ in planted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"#include {include}\n")
        caught = {line.split(":")[0] for line in violations(root, set())}
    return [f"{path} includes {include}: {'missed' if bad else 'falsely accused'}" for path, include, bad in planted
            if (path in caught) != bad]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: layering.py ROOT")
    wrong = self_test() + list(self_test_of_table()) + list(table_errors(DECLARED))
    if wrong:
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    used = set()
    found = list(violations(root, used))
    for mine, below in ALLOWED.items():
        found += [f"{mine} may include {other}, and does not: take it off its USES" for other in sorted(below)
                  if (mine, other) not in used]
    print("\n".join(found) or f"{len(tree.files(root))} files, all includes in order")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
