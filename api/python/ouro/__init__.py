"""ouro: collectives, messages, process groups, streams, and the trainers that use them.

    import numpy, ouro

    with ouro.init() as job:                       # reads the launcher's variables; one rank without a launcher
        x = numpy.full(1000, job.rank, numpy.float32)
        print(job.world.all_reduce(x)[0])

The compiled part is loaded on first use, so that `import ouro` and `import ouro.torch` need nothing but Python. The same holds
for `ouro.train` and for `ouro.torch`, which imports PyTorch. `ouro.nccl` takes effect only when it is imported.
"""
import importlib

from ouro import _where
from ouro._where import include, includes, library, version
from ouro.errors import (AbortedError, CorruptError, DeadlineError, DeviceError, Error, ForkedError, InvalidError, JoinError,
                         MismatchError, PeerLostError, ResourceError, UnsupportedError)

__version__ = version()

_COMPILED = ["Context", "Event", "Group", "Matched", "Received", "ReduceOp", "Row", "Stream", "Topology", "Work", "batch",
             "init", "library_version", "log_warning", "premul", "threads", "topologies", "unique_id"]

__all__ = ["AbortedError", "CorruptError", "DeadlineError", "DeviceError", "Error", "ForkedError", "InvalidError", "JoinError",
           "MismatchError", "PeerLostError", "ResourceError", "UnsupportedError", "include", "includes", "library", "version",
           *_COMPILED]

__path__ += _where.compiled()


def __getattr__(name):
    if name == "train":
        return importlib.import_module("ouro.train")
    if name == "torch":
        try:
            return importlib.import_module("ouro.torch")
        except ImportError as error:
            raise AttributeError(f"ouro.torch could not be imported: {error}") from error
    if name == "nccl":
        raise AttributeError("ouro.nccl has not been imported: `import ouro.nccl`, before PyTorch, CuPy or JAX")
    if name not in _COMPILED:
        raise AttributeError(f"module 'ouro' has no attribute {name!r}")
    value = getattr(importlib.import_module("ouro._ouro"), name)
    globals()[name] = value
    return value


def __dir__():
    # Not "torch", because completion of names accesses each, and PyTorch is slow to import and must not be
    # imported before ouro.nccl.
    return sorted({*globals(), *__all__, "train"})
