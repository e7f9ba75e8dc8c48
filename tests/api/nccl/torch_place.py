# Where the tests find PyTorch: an environment that tools/torch-env made. Used by the tests with PyTorch in this folder.
import os
import pathlib
import sys


def folder():
    """Its folder; where there is none the process ends, as skipped."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = pathlib.Path(os.environ.get("OURO_TORCH_ENV") or f"{cache}/ouro/torch-env")
    if not (place / "torch-env.txt").exists():
        print(f"SKIP: PyTorch is not in {place} (OURO_TORCH_ENV); tools/torch-env installs it there")
        sys.exit(77)
    return place


def interpreter():
    return str(folder() / "bin/python")


def packages():
    """The folder with PyTorch's own libraries."""
    return next(folder().glob("lib/python3*/site-packages/torch/lib"))
