# A first program: torchrun, init_process_group("ouro"), all_reduce, DistributedDataParallel. Usage: first_test.py
# [RANKS]; if started by torchrun, it is a rank.
import os
import subprocess
import sys

import places

if "RANK" not in os.environ:
    ranks = int(sys.argv[1])
    command = [places.interpreter(), "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env=places.environment(), timeout=100)
    print(done.stdout, done.stderr[-4000:] if done.returncode else "")
    assert done.returncode == 0 and done.stdout.count("rank is well") == ranks
    sys.exit()

import torch
import torch.distributed as dist

import ouro.torch

dist.init_process_group("ouro")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((5,), float(rank + 1))
dist.all_reduce(x)
assert (x == size * (size + 1) / 2).all(), x
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.full((2, 4), float(rank))).sum().backward()
assert (model.module.weight.grad == sum(range(size)) * 2 / size).all(), model.module.weight.grad
assert ouro.torch.carrier() == "ouro" and dist.get_backend() == "ouro"
try:
    dist.init_process_group("ouro")
    raise SystemExit("a second init_process_group went through")
except ValueError as e:
    assert "initialize the default process group twice" in str(e)
sys.stdout.write("rank is well\n")
dist.destroy_process_group()
