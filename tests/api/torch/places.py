# Ranks with PyTorch and the backend ouro, for the tests in this folder: where PyTorch is, and processes that are ranks.
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nccl"))
import torch_place


def interpreter():
    """That of the environment with PyTorch; without one the process ends, as skipped."""
    return torch_place.interpreter()


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def start(script, ranks, *arguments, store, **variables):
    """`script` as `ranks` processes: script --rank RANK RANKS STORE ARGUMENT..."""
    command = [interpreter(), script, "--rank"]
    return [subprocess.Popen([*command, str(rank), str(ranks), store, *map(str, arguments)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env=environment(**variables)) for rank in range(ranks)]


def run(script, ranks, *arguments, expected=None, seconds=200, **variables):
    """All of them, to the end. Returns their outputs; ends the test where a rank does not end as `expected` (all with 0)."""
    with tempfile.TemporaryDirectory() as store:
        processes = start(script, ranks, *arguments, store=store, **variables)
        try:
            texts = [p.communicate(timeout=seconds)[0] for p in processes]
        except subprocess.TimeoutExpired:
            for p in processes:
                p.kill()
            texts = [p.communicate()[0] for p in processes]
            expected = "an end in time"
    codes = [p.returncode for p in processes]
    if codes != (expected or [0] * ranks):
        for rank, text in enumerate(texts):
            print(f"==== rank {rank} of {ranks}, {' '.join(map(str, arguments))}: {codes[rank]}\n{text[-6000:]}")
        sys.exit(f"FAILED: {codes}, expected {expected or 'zeros'}")
    return texts


def arguments():
    """(rank, ranks, store, further arguments) in a rank; None in the test itself."""
    if len(sys.argv) < 2 or sys.argv[1] != "--rank":
        return None
    return int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]


def init(backend, store=None, **options):
    """init_process_group of this rank, by a file store of its own; returns (rank, size, further arguments)."""
    import torch.distributed as dist

    import ouro.torch  # noqa: F401

    rank, size, folder, rest = arguments()
    dist.init_process_group(backend, init_method=f"file://{store or folder + '/store'}", rank=rank, world_size=size, **options)
    return rank, size, rest
