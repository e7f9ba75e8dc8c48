#!/usr/bin/env python3
"""Research packages that train with torch.distributed, unmodified, over ouro beside gloo: every function of their distributed modules.

Usage: tools/gate packages [--ranks N]... [--build DIRECTORY] [decent_dp|helios|torchgfn|xffl]...   (default: 2 and 4 ranks, all)

Each package runs over gloo, and then over ouro, which stands in for gloo. A row is one function; its values, or the kind of
its failure, are compared on every rank. A table says how they agree:
  equal      all values are the same bits
  to 1e-8    they differ by so much, relative to the largest: sums of more than two are associated differently
  both fail  the package fails over either, in the same way
decent_dp's rows "GossipDataParallel" run ouro.torch's in its place. torchgfn's ring, in which all ranks send first, hangs
over gloo: there it is given twenty seconds. Where a package is missing it is skipped by name: tools/torch-env --packages
installs decent-dp 0.2.3, torchgfn 2.4.1 and helios-ml 2.0.1. xFFL is not in the registry: OURO_XFFL names a folder that holds
its package `xffl`, such as a checkout.

  --build    a build folder (build), with the Python module; what is missing is built in it

Exit code: 0; 1 if a row differs; 2 wrong usage or no build; 77 if nothing could run.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import places

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[3]
MODULES = {"decent_dp": ["decent_dp", "loguru"], "helios": ["helios"], "torchgfn": ["gfn", "tensordict", "torch_geometric", "dill"],
           "xffl": ["xffl", "tqdm"]}
EXPECTED = {"gather_distributed_data torch.float32":
            "fails over either: the package broadcasts a float32 into int64s, which ouro reports as a mismatch on all ranks"}
FLOAT_BOUND = 2e-5  # bound for parameters of float32 after 8 steps


def folders():
    """The folders that contain the packages."""
    installed = [pathlib.Path(places.interpreter()).parents[1] / "packages"]
    return installed + [pathlib.Path(d).absolute() for d in [os.environ.get("OURO_XFFL")] if d]


def skipped(package):
    """Why the package cannot run here; empty if it can."""
    missing = [m for m in MODULES[package] if not any((f / m / "__init__.py").is_file() for f in folders())]
    remedy = "OURO_XFFL names its folder" if missing == ["xffl"] else "tools/torch-env --packages installs it"
    return f"{', '.join(missing)} not in {' or '.join(map(str, folders()))}; {remedy}" if missing else ""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def run(package, ranks, backend, scratch, *arguments, patience=0):
    """The rows of its ranks; None: they did not end within `patience` seconds after all had
    started, if that is given."""
    environment = places.environment(PYTHONPATH=":".join(map(str, [*folders(), TREE / "api/python"])),
                                     PYTHONDONTWRITEBYTECODE="1", MASTER_PORT=str(free_port()),
                                     OURO_TORCH_AS="gloo" if backend == "ouro" else "")
    command = [places.interpreter(), HERE / f"{package}_rows.py", "--rank"]
    processes = [subprocess.Popen([*command, str(r), str(ranks), scratch, backend, *arguments], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, env=environment) for r in range(ranks)]
    begun, end = [pathlib.Path(f"{scratch}/{backend}.{r}.begun") for r in range(ranks)], time.monotonic() + 300
    while patience and time.monotonic() < end and not all(b.exists() for b in begun):
        time.sleep(0.1)
    try:
        texts = [p.communicate(timeout=patience or 300)[0] for p in processes]
    except subprocess.TimeoutExpired:
        for p in processes:
            p.kill()
        [p.communicate() for p in processes]
        return None
    for rank, p in enumerate(processes):
        if p.returncode:
            print(f"==== {package}, rank {rank} of {ranks} over {backend}: exit code {p.returncode}\n{texts[rank][-4000:]}")
            return None
    return [json.loads(pathlib.Path(f"{scratch}/{backend}.{r}.json").read_text()) for r in range(ranks)]


def judge(mine, theirs):
    """Compares the values of a row over ouro with those over gloo, on all ranks; (verdict,
    whether it is good)."""
    if mine == theirs:
        return ("both fail", True) if any(v[:1] == ["fails"] for v in mine) else ("equal", True)
    far = 0.0
    for a, b in zip(mine, theirs):
        pairs = [(x, y) for x, y in zip(a, b) if x != y]
        if len(a) != len(b) or any(isinstance(v, str) or not math.isfinite(v) for pair in pairs for v in pair):
            return f"differs: {a[:3]}, over gloo {b[:3]}", False
        scale = max([abs(y) for y in b if not isinstance(y, str)] + [1e-30])
        far = max([far, *(abs(x - y) / scale for x, y in pairs)])
    return (f"to {far:.0e}", True) if far < FLOAT_BOUND else (f"differs by {far:.1e}", False)


def compare(package, ranks):
    """Rows of (name, verdict, good)."""
    with tempfile.TemporaryDirectory() as scratch:
        theirs, mine = (run(package, ranks, backend, scratch) for backend in ("gloo", "ouro"))
    if theirs is None or mine is None:
        return [("the program", "ended with an error, or not in time", False)]
    rows = []
    for name in dict.fromkeys(n for r in (*theirs, *mine) for n in r):
        if name in EXPECTED:
            good = all(r[name] == ["fails", "DistBackendError"] for r in mine) and ["fails", "TypeError"] in [r[name] for r in theirs]
            rows.append((name, EXPECTED[name] if good else "is not as expected any more", good))
            continue
        rows.append((name, *judge([r.get(name, []) for r in mine], [r.get(name, []) for r in theirs])))
    return rows


def ring(ranks):
    with tempfile.TemporaryDirectory() as scratch:
        mine = run("torchgfn", ranks, "ouro", scratch, "ring")
        theirs = run("torchgfn", ranks, "gloo", scratch, "ring", patience=20)
    name = "ring, all send first"
    good = mine is not None and all(r[name] == [(k - 1) % ranks, *range(50)] for k, r in enumerate(mine))
    over_gloo = "hangs" if theirs is None else "equal" if mine and [r[name] for r in mine] == [r[name] for r in theirs] else "fails"
    return [(name, f"{'right' if good else 'wrong'}; over gloo: {over_gloo}", good)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("Usage: "), add_help=False)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--build", type=pathlib.Path, default=TREE / "build")
    parser.add_argument("-h", "--help", action="store_true")
    options = parser.parse_args()
    if options.help:
        return print(__doc__.strip())
    if unknown := set(options.packages) - set(MODULES):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(MODULES)}")
    build = options.build.absolute()
    if not (build / "CMakeCache.txt").exists():
        parser.error(f"{build} is no build folder")
    if subprocess.run(["cmake", "--build", build, "--target", "ouro", "ouro_python"], stdout=subprocess.DEVNULL).returncode:
        parser.error(f"{build} makes no Python module: nanobind and the headers of Python are needed (tools/torch-env)")
    os.environ["OURO_BUILD_DIR"] = str(build)
    good, some = True, False
    for package in options.packages or MODULES:
        if why := skipped(package):
            print(f"SKIP: not installed: {package}: {why}")
            continue
        some = True
        for ranks in options.ranks or (2, 4):
            rows = compare(package, ranks) + (ring(ranks) if package == "torchgfn" else [])
            print(f"\n{package}, {ranks} ranks\n" + "\n".join(f"  {name:44} {verdict}" for name, verdict, _ in rows), flush=True)
            kinds = collections.Counter("to " if v.startswith("to ") else v if v in ("equal", "both fail") else "other" for _, v, _ in rows)
            print(f"  {len(rows)} rows: {kinds['equal']} equal, {kinds['to ']} within rounding, {kinds['both fail']} fail over either, "
                  f"{kinds['other']} others, of them {sum(not ok for *_, ok in rows)} bad", flush=True)
            good &= all(ok for *_, ok in rows)
    sys.exit(77 if not some else 0 if good else 1)


if __name__ == "__main__":
    main()
