"""Puts ouro's libnccl.so.2 in place of NVIDIA's: `import ouro.nccl` before the first import of PyTorch, CuPy or JAX.

Programs that look for a library of the name libnccl.so.2 get the one that the process has already. So this has to come
first; where another one is there, it is an ImportError, as the two would be mixed.
"""
import ctypes
import os
import sys

from ouro._where import nccl_library

_NAME = "libnccl.so.2"


def _mapped():
    """The libraries of this name that the process has mapped."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if line.rstrip().endswith("/" + _NAME)})


def _load():
    path = os.path.realpath(nccl_library())
    others = [m for m in _mapped() if os.path.realpath(m) != path]
    if others:
        first = "PyTorch" if "torch" in sys.modules else "another package"
        raise ImportError(f"ouro.nccl comes too late: {first} has loaded {others[0]}. Import ouro.nccl first, or start the "
                          "program with `ouro-run --nccl`")
    library = ctypes.CDLL(nccl_library())
    if not hasattr(library, "ouro_nccl_identity"):
        raise ImportError(f"{path} is not ouro's {_NAME}")
    return library


library = _load()
"""The library, by ctypes."""
