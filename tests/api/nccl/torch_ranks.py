# Ranks that are processes with PyTorch, for the tests of ouro's libnccl.so.2 in this folder and of the backend
# in ../torch.
import atexit
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch_place


def emulated(libraries, devices):
    """Variables that put the CUDA runtime and driver of the tests and ouro's libnccl.so.2 in front of PyTorch's own."""
    return {"LD_PRELOAD": " ".join(libraries), "OURO_FAKE_GPUS": str(devices), "OURO_DEADLINE": "60"}


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


class Server:
    """A process that has imported PyTorch with these environment variables, and forks ranks."""
    all_of_them = {}  # by environment variables

    def __init__(self, variables):
        command = [torch_place.interpreter(), pathlib.Path(__file__).with_name("torch_server.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment(**variables))
        atexit.register(self.end)

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    def run(self, script, ranks, seconds):
        """Runs the program as ranks, which are pairs of arguments and the file for the output. Returns their exit
        codes, and whether all have ended in time."""
        print(json.dumps([script, ranks, seconds]), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or sys.exit("FAILED: PyTorch cannot be imported"))
        return answer["codes"], answer["in time"]

    @classmethod
    def of(cls, variables):
        key = tuple(sorted(variables.items()))
        return cls.all_of_them.get(key) or cls.all_of_them.setdefault(key, cls(variables))


def run(script, ranks, *arguments, expected=None, seconds=200, **variables):
    """Runs `script` as `ranks` processes (script --rank RANK RANKS STORE ARGUMENT...) with these environment variables to
    their ends. Returns their outputs; fails the test if a rank does not end as `expected`: one code for each rank, or
    several codes (by default all 0)."""
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryDirectory() as outputs:
        files = [pathlib.Path(outputs, str(rank)) for rank in range(ranks)]
        each = [(["--rank", str(rank), str(ranks), store, *map(str, arguments)], str(file)) for rank, file in enumerate(files)]
        codes, in_time = Server.of(variables).run(os.path.abspath(script), each, seconds)
        texts = [file.read_text(errors="replace") for file in files]
    wanted = expected or [0] * ranks
    as_wanted = (code in (want if isinstance(want, tuple) else (want,)) for code, want in zip(codes, wanted))
    if not in_time or not all(as_wanted):
        for rank, text in enumerate(texts):
            print(f"==== rank {rank} of {ranks}, {' '.join(map(str, arguments))}: {codes[rank]}\n{text[-6000:]}")
        sys.exit(f"FAILED: {codes}, expected {(expected or 'zeros') if in_time else 'an end in time'}")
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
