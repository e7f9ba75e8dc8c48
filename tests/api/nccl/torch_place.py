# Finds programs of others for the tests: an environment that tools/torch-env made. Used by tests in this folder.
import os
import pathlib
import subprocess
import sys


def place():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(os.environ.get("OURO_TORCH_ENV") or f"{cache}/ouro/torch-env")


def folder():
    """Its folder; if there is none, ends the process as skipped."""
    if not (place() / "torch-env.txt").exists():
        print(f"SKIP: not installed: PyTorch in {place()} (OURO_TORCH_ENV); tools/torch-env installs it there")
        sys.exit(77)
    return place()


def interpreter():
    return str(folder() / "bin/python")


def packages():
    """The folder with PyTorch's own libraries."""
    return next(folder().glob("lib/python3*/site-packages/torch/lib"))


def interpreter_with(module):
    """This interpreter, or the environment's, whichever has the module; if neither has it, ends the process as
    skipped."""
    for python in sys.executable, place() / "bin/python":
        if os.path.exists(python):
            probe = subprocess.run([python, "-c", f"import {module}, numpy"], capture_output=True, text=True)
            if probe.returncode == 0:
                return str(python)
    print(f"SKIP: not installed: {module}, neither here nor in {place()}; tools/torch-env --clients installs it there")
    sys.exit(77)
