#!/usr/bin/env python3
"""One wheel of the Python package, with several versions of PyTorch.

Usage: tools/gate wheel [--wheel FILE] [--build DIRECTORY] [ENVIRONMENT]...

Makes a wheel (tools/wheel) with the compiled adapter for the PyTorch of the first environment, unpacks it into a folder of its
own, and runs two ranks on it with the PyTorch of each environment: all_reduce, DistributedDataParallel, futures. The first must
be served by the adapter in the wheel; one of another version by an adapter that is compiled then, and found again afterwards.

  ENVIRONMENT  a folder that tools/torch-env made, all with the same version of Python (OURO_TORCH_ENV, or its default place)
  --wheel      a wheel that is there, made with --torch for the first environment
  --build      a build folder to take the wheel's parts from (default: tools/wheel makes one)

Exit code: 0; 1 if one failed; 2 wrong usage; 77 if an environment is missing.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[3]


def rank():
    """The program of each rank; prints which adapter served it."""
    import torch
    import torch.distributed as dist

    import ouro.torch
    from ouro.torch import build

    dist.init_process_group("ouro")
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((1000,), r + 1.0)
    dist.all_reduce(x)
    assert (x == n * (n + 1) / 2).all()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.full((3, 4), float(r))).sum().backward()
    assert (model.module.weight.grad == 3 * (n - 1) / 2).all()
    work = dist.all_reduce(x, async_op=True)
    assert (work.get_future().wait()[0] == n * n * (n + 1) / 2).all()
    where = "in the wheel" if pathlib.Path(build.adapter().__file__).parent.name == "prebuilt" else "compiled"
    print(f"\nserved {r} {where} {torch.__version__} {pathlib.Path(ouro.__file__).parent}", flush=True)
    dist.destroy_process_group()


def served(python, packages, cache):
    """The adapter that served each rank, and the version of PyTorch."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("OURO_")}
    variables |= {"PYTHONPATH": str(packages), "OURO_TORCH_CACHE": str(cache), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__], env=variables, cwd=packages,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    lines = [line.removeprefix("served ").split() for line in done.stdout.splitlines() if line.startswith("served ")]
    if done.returncode or len(lines) != 2 or any(line[-1] != str(packages / "ouro") for line in lines):
        print(done.stdout[-4000:])
        return None
    return {(" ".join(line[1:-2]), line[-2]) for line in lines}


def main():
    if "RANK" in os.environ:
        return rank()
    sys.path.insert(0, str(TREE / "tests/api/nccl"))
    import torch_place

    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("Usage: "), add_help=False)
    parser.add_argument("environments", nargs="*", type=pathlib.Path)
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("-h", "--help", action="store_true")
    options = parser.parse_args()
    if options.help:
        return print(__doc__.strip())
    environments = [e.absolute() for e in options.environments] or [torch_place.place()]
    if missing := [str(e) for e in environments if not (e / "torch-env.txt").exists()]:
        print(f"SKIP: not installed: PyTorch in {', '.join(missing)}; tools/torch-env DIR [--torch VERSION] makes one")
        sys.exit(77)
    pythons = [str(e / "bin/python") for e in environments]
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        wheel = options.wheel
        if not wheel:
            build = ["--build", str(options.build)] if options.build else []
            subprocess.run([sys.executable, TREE / "tools/wheel", *build, "--torch", pythons[0], f"{scratch}/dist"], check=True)
            wheel = next(pathlib.Path(scratch, "dist").glob("*.whl"))
        packages = pathlib.Path(scratch, "packages")
        subprocess.run([pythons[0], "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", packages,
                        wheel.absolute()], check=True)
        of_wheel = None
        for python in pythons:
            for cache in ("empty", "used"):
                by = served(python, packages, pathlib.Path(scratch, "cache"))
                version = next(iter(by))[1] if by else ""
                of_wheel = of_wheel or version
                wanted = {("in the wheel" if version == of_wheel else "compiled", version)}
                good &= by == wanted
                print(f"{python}, {cache} cache: {', '.join(map(' '.join, by)) if by else 'failed'}"
                      f"{'' if by == wanted else ', not as wanted'}", flush=True)
        made = sorted(p.name for p in pathlib.Path(scratch, "cache").glob("*.so"))
        print(f"{wheel.name}; compiled: {', '.join(made) or 'none'}")
    sys.exit(0 if good else 1)


main()
