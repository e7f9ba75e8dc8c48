# Ranks that are processes with PyTorch, for the tests of ouro's libnccl.so.2 in this folder and of the backend
# in ../torch.
import os
import subprocess
import sys
import tempfile

import torch_place


def emulated(libraries, devices):
    """Variables that put the CUDA runtime and driver of the tests and ouro's libnccl.so.2 in front of PyTorch's own."""
    return {"LD_PRELOAD": " ".join(libraries), "OURO_FAKE_GPUS": str(devices), "OURO_DEADLINE": "60"}


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def start(script, ranks, *arguments, store, **variables):
    """Starts `script` as `ranks` processes: script --rank RANK RANKS STORE ARGUMENT..., with these environment
    variables."""
    command = [torch_place.interpreter(), script, "--rank"]
    return [subprocess.Popen([*command, str(rank), str(ranks), store, *map(str, arguments)], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env=environment(**variables)) for rank in range(ranks)]


def run(script, ranks, *arguments, expected=None, seconds=200, **variables):
    """Starts all ranks and waits for them. Returns their outputs; fails the test if a rank does not end as
    `expected`: one code for each rank, or several codes (by default all 0)."""
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
    wanted = expected or [0] * ranks
    if isinstance(wanted, str) or any(code not in (want if isinstance(want, tuple) else (want,)) for code, want in zip(codes, wanted)):
        for rank, text in enumerate(texts):
            print(f"==== rank {rank} of {ranks}, {' '.join(map(str, arguments))}: {codes[rank]}\n{text[-6000:]}")
        sys.exit(f"FAILED: {codes}, expected {expected or 'zeros'}")
    return texts


def device_backend():
    """The backend for tensors on GPUs: nccl, or ouro, for which the tests in ../torch set BACKEND=ouro."""
    name = os.environ.get("BACKEND", "nccl")
    if name == "ouro":
        import ouro.torch  # noqa: F401
    return name


def is_newer():
    """True from PyTorch 2.15 on, with which the tests were written: older versions have monitored_barrier for gloo only."""
    import torch

    return tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 15)


def arguments():
    """(rank, ranks, store, further arguments) in a rank; None in the test itself."""
    if len(sys.argv) < 2 or sys.argv[1] != "--rank":
        return None
    return int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]
