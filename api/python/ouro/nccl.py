"""Loads ouro's libnccl.so.2 in place of NVIDIA's: `import ouro.nccl` before the first import of PyTorch, CuPy or JAX.

A program that loads a library named libnccl.so.2 gets the one that the process has already loaded, so this module must
be imported first. If another one is loaded already, it raises ImportError, because the two would be mixed.
"""
import ctypes
import os
import sys

from ouro._where import nccl_library

_NAME = "libnccl.so.2"


def _mapped():
    """The libraries of this name that are mapped into the process."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if line.rstrip().endswith("/" + _NAME)})


def _load():
    path = os.path.realpath(nccl_library())
    others = [m for m in _mapped() if os.path.realpath(m) != path]
    if others:
        first = "PyTorch" if "torch" in sys.modules else "another package"
        raise ImportError(f"ouro.nccl is imported too late: {first} has loaded {others[0]}. Import ouro.nccl first, or start the "
                          "program with `ouro-run --nccl`")
    library = ctypes.CDLL(nccl_library())
    if not hasattr(library, "ouro_nccl_identity"):
        raise ImportError(f"{path} is not ouro's {_NAME}")
    return library


library = _load()  # the loaded library, as a ctypes.CDLL
