# Ranks with PyTorch and the backend ouro, for the tests in this folder: finds PyTorch, and runs processes as ranks.
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nccl"))
from torch_place import interpreter  # noqa: F401
from torch_ranks import arguments, environment, run  # noqa: F401


def init(backend, store=None, **options):
    """Calls init_process_group for this rank, with a file store of its own; returns (rank, size, further arguments)."""
    import torch.distributed as dist

    import ouro.torch  # noqa: F401

    rank, size, folder, rest = arguments()
    dist.init_process_group(backend, init_method=f"file://{store or folder + '/store'}", rank=rank, world_size=size, **options)
    return rank, size, rest


def raises(kind, words, call):
    """Ends the rank unless call() raises an error of this kind, with these words."""
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"{kind.__name__} with {words!r} was not raised")
