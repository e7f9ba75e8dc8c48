# The examples with PyTorch, one after the other in the same ranks, as torchrun would start them. Usage: examples_test.py RANKS
import pathlib
import runpy
import socket
import sys

import places

EXAMPLES = ["torch_ddp", "torch_fsdp2", "torch_decentralised", "torch_federated"]
folder = pathlib.Path(__file__).parents[3] / "api/python/examples"


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


if not places.arguments():
    told = "".join(places.run(__file__, int(sys.argv[1]), *free_ports(len(EXAMPLES))))
    print(told)
    begun = [line.split(",")[0] for line in told.splitlines() if "test digits" in line]
    assert begun == ["DDP", "FSDP2", "decentralised", "federated"], begun
    sys.exit()

import os

rank, size, _, ports = places.arguments()
sys.path.insert(0, str(folder))
os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"})
for example, port in zip(EXAMPLES, ports):
    os.environ["MASTER_PORT"] = port
    runpy.run_path(str(folder / f"{example}.py"), run_name="__main__")
