# Training over ouro gives the same losses and parameters as over gloo: DistributedDataParallel (also with a
# communication hook), FSDP2, its hybrid form, DTensor, functional collectives, distributed checkpoints. Usage:
# training_test.py RANKS, even
import json
import pathlib
import sys
import tempfile

import places

if not places.arguments():
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("ouro", "gloo"):
            places.run(__file__, ranks, backend, folder)
        for rank in range(ranks):
            mine, theirs = (json.loads(pathlib.Path(f"{folder}/{backend}.{rank}").read_text()) for backend in ("ouro", "gloo"))
            assert list(mine) == list(theirs) and len(mine) == 8
            for name, values in mine.items():
                assert len(values) == len(theirs[name]) > 10
                far = max(abs(a - b) for a, b in zip(values, theirs[name]))
                assert far < 1e-5, f"{name}: {far}"  # sums of more than two terms are associated differently
                if rank == 0:
                    print(f"{name}: {len(values)} numbers as over gloo, to {far}")
    sys.exit()

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from torch_models import network, train

backend, folder = places.arguments()[3]
rank, size, _ = places.init(backend)
given = {}
cpu = torch.device("cpu")


def give(name, *values):
    """Passes values to the test."""
    given[name] = torch.cat([torch.as_tensor(v, dtype=torch.float64).detach().reshape(-1) for v in values]).tolist()


def ddp(name, hook=None, **options):
    model = DistributedDataParallel(network(), bucket_cap_mb=0.002, **options)
    if hook:
        model.register_comm_hook(None, hook)
    losses = train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), cpu, rank)
    give(name, losses, *model.parameters())


def fsdp(name, mesh):
    model = network()
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    losses = train(model, torch.optim.AdamW(model.parameters(), 0.01), cpu, rank)
    give(name, losses, *(p.to_local() for p in model.parameters()))
    return model


def checkpoints(model):
    """Saved by all ranks, and loaded into another model."""
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/{backend}.checkpoint")
    other = network()
    fully_shard(other, mesh=mesh)
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=f"{folder}/{backend}.checkpoint")
    other.load_state_dict(state["model"])
    give("checkpoint", *(p.full_tensor() for p in other.parameters()))


def tensors():
    torch.manual_seed(3)
    a, b = torch.randn(8, 6), torch.randn(6, 8)
    x, y = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
    give("DTensor", (x @ y.redistribute(mesh, [Replicate()])).full_tensor(), x.redistribute(mesh, [Shard(1)]).to_local(),
         DTensor.from_local(a + rank, mesh, [Replicate()]).to_local(), x.sum().full_tensor())


def functions():
    x = torch.arange(4.0 * size) * (rank + 1)
    group = dist.group.WORLD
    results = [functional.all_reduce(x, "sum", group), functional.all_gather_tensor(x, 0, group),
               functional.reduce_scatter_tensor(x, "sum", 0, group), functional.all_to_all_single(x, None, None, group),
               functional.broadcast(x, 1, group)]
    results += functional.all_reduce_coalesced([x, x + 1], "sum", group)
    results += functional.all_gather_into_tensor_coalesced([x, x + 1], group)
    results += functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
    give("functional", *(functional.wait_tensor(r) for r in results))


ddp("DDP")
ddp("DDP-views", gradient_as_bucket_view=True)
ddp("DDP-hook", hook=default_hooks.fp16_compress_hook)
mesh = dist.init_device_mesh("cpu", (size,))
model = fsdp("FSDP2", mesh)
fsdp("HSDP", dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicated", "sharded")))
checkpoints(model)
tensors()
functions()
pathlib.Path(f"{folder}/{backend}.{rank}").write_text(json.dumps(given))
dist.destroy_process_group()
