# Starts ranks with PyTorch as processes of this host, for the benchmarks with PyTorch in this folder.
import os
import pathlib
import socket
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/api/nccl"))
import torch_place  # noqa: E402


def run(script, arguments, ranks, *packages):
    """Runs `script` on that many ranks, with IN_RANK=1 and `packages` in the path, until they end; exits if one of them fails."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    job = os.environ | {"PYTHONPATH": ":".join(map(str, [TREE / "api/python", *packages])), "OMP_NUM_THREADS": "1", "IN_RANK": "1",
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started = [subprocess.Popen([torch_place.interpreter(), script, *arguments], env=job | {"RANK": str(r), "LOCAL_RANK": str(r)})
               for r in range(ranks)]
    try:
        codes = [p.wait(timeout=900) for p in started]
    finally:
        for p in started:
            if p.poll() is None:
                p.kill()
    if any(codes):
        sys.exit(f"{pathlib.Path(script).name}: ranks ended with {codes}")
