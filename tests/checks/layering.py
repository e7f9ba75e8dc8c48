# Who may include whom. Usage: layering.py ROOT. Ends with 1 and a line for each include that is not allowed.
import pathlib
import sys
import tempfile

import tree

# api -> runtime -> kernels, transport -> runtime/flow, kernels/arith, runtime/device, runtime/wire -> runtime/core
GROUND = {"runtime/flow", "kernels/arith", "runtime/device", "runtime/wire"}
ALLOWED = {
    "runtime/core": set(),
    **{room: {"runtime/core"} for room in GROUND},
    "kernels": GROUND | {"runtime/core"},
    "transport": GROUND | {"runtime/core"},
    "runtime": GROUND | {"runtime/core", "kernels", "transport"},
    "api": GROUND | {"runtime/core", "kernels", "transport", "runtime"},
}
INNER_ROOMS = sorted(GROUND | {"runtime/core"})
OUTSIDE = ("tests", "bench", "tools")  # include anything, are included by themselves only
SHARED_TOOLS = ("tools/chart", "tools/cli", "tools/measure", "tools/models", "tools/run")  # small libraries that tests, benches and other tools share
PUBLIC = pathlib.PurePosixPath("api/include/ouro")
PUBLIC_OWN = {"runtime/core/status.h", "runtime/core/types.h"}
CUDA_HEADERS = ("cuda", "nv/", "cub/", "thrust/", "cooperative_groups", "nvtx3/", "driver_types", "vector_types")


def room(path):
    """The room of a file, by its path from the root; None for what is no room."""
    path = pathlib.PurePosixPath(path)
    for inner in INNER_ROOMS:
        if path.is_relative_to(inner):
            return inner
    return path.parts[0] if len(path.parts) > 1 and path.parts[0] in (*ALLOWED, *OUTSIDE) else None


def resolve(root, includer, name):
    """The path from the root of a file of this project that an include names, or None."""
    for candidate in (root / name, root / "api/include" / name, (root / includer).parent / name):
        if candidate.is_file():
            return candidate.resolve().relative_to(root)
    first = pathlib.PurePosixPath(name)
    return first if room(first) else None  # names a room but no file: the compiler will say so, we check the room


def complaint(root, includer, bracket, name):
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
    if target is None:
        if bracket == '"' and room(includer) not in OUTSIDE:
            return "in quotes, but no file of this project"
        return None
    if bracket == "<" and not pathlib.PurePosixPath(target).is_relative_to(PUBLIC):
        return "a file of this project in angle brackets"
    mine, theirs = room(includer), room(target.as_posix())
    if theirs in OUTSIDE:
        shared = any(target.as_posix().startswith(s + "/") for s in SHARED_TOOLS)
        same = target.parts[:2] == pathlib.Path(includer).parts[:2]
        if mine in OUTSIDE and (same or shared or mine == "tests" or mine == theirs == "bench"):
            return None
        return f"{target} is included by nobody outside its folder but tests"
    if mine in OUTSIDE or mine == theirs or theirs in ALLOWED.get(mine, ()):
        return None
    return f"{mine} must not know {theirs}"


def violations(root):
    for path in tree.files(root):
        for number, bracket, name in tree.includes((root / path).read_text()):
            why = complaint(root, path.as_posix(), bracket, name)
            if why:
                yield f"{path}:{number}: #include {name}: {why}"


def self_test():
    """Plants one violation of each kind and innocents beside them; returns what was judged wrongly."""
    planted = [
        ("runtime/core/a.h", '"runtime/wire/w.h"', True),
        ("runtime/wire/w.h", '"runtime/core/a.h"', False),
        ("runtime/wire/x.h", '"runtime/flow/f.h"', True),
        ("runtime/flow/f.h", "<cstdint>", False),
        ("kernels/arith/r.h", '"kernels/k.h"', True),
        ("kernels/k.h", '"transport/t.h"', True),
        ("kernels/l.h", '"kernels/arith/r.h"', False),
        ("transport/t.h", '"runtime/group.h"', True),
        ("transport/u.h", '"runtime/device/d.h"', False),
        ("runtime/device/d.h", '"nowhere.h"', True),
        ("runtime/group.h", '"api/src/c.h"', True),
        ("runtime/host.h", '"transport/t.h"', False),
        ("runtime/tool.h", '"tools/run/l.h"', True),
        ("api/src/c.h", '"runtime/group.h"', False),
        ("api/src/d.h", '"tests/t.h"', True),
        ("api/src/e.h", '"ouro/p.hpp"', False),
        ("api/src/f.h", "<runtime/group.h>", True),
        ("api/include/ouro/p.hpp", '"runtime/core/status.h"', False),
        ("api/include/ouro/q.hpp", '"runtime/core/log.h"', True),
        ("api/include/ouro/r.hpp", "<cuda_runtime.h>", True),
        ("api/include/ouro/s.hpp", "<fmt/core.h>", True),
        ("api/include/ouro/t.hpp", '"ouro/p.hpp"', False),
        ("tests/t.h", '"runtime/group.h"', False),
        ("tools/run/l.h", '"runtime/core/a.h"', False),
        ("tools/perf/p.h", '"tools/run/l.h"', False),
        ("tools/perf/q.h", '"tools/info/i.h"', True),
        ("tools/info/i.h", "<vector>", False),
    ]
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory).resolve()
        for name in ("runtime/core/status.h", "runtime/core/log.h"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("#pragma once\n")
        for path, include, _ in planted:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"#include {include}\n")
        caught = {line.split(":")[0] for line in violations(root)}
    return [f"{path} includes {include}: {'missed' if bad else 'falsely accused'}" for path, include, bad in planted
            if (path in caught) != bad]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: layering.py ROOT")
    wrong = self_test()
    if wrong:
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    found = list(violations(root))
    print("\n".join(found) or f"{len(tree.files(root))} files, all includes in order")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
