# Training with unmodified PyTorch over NCCL, on emulated devices: steps with DistributedDataParallel and with FSDP2
# (fully_shard) give the same losses and parameters as the same steps over gloo on the host. Usage:
# torch_training.py RUNTIME DRIVER LIBRARY RANKS DEVICES [VARIABLE=VALUE]...
import os
import re
import sys

import torch_ranks

in_rank = torch_ranks.arguments()
if not in_rank:
    ranks, devices = int(sys.argv[4]), int(sys.argv[5])
    variables = torch_ranks.emulated(sys.argv[1:4], devices) | dict(v.split("=") for v in sys.argv[6:])
    texts = torch_ranks.run(__file__, ranks, **variables)
    for text in texts:
        print(*re.findall(r"^(?:DDP|FSDP2).*$", text, re.M), sep="\n")
    assert all(len(re.findall(r"as over gloo", text)) == 4 for text in texts), texts
    sys.exit()

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_arithmetic
from torch_models import STEPS, network, train

rank, size, store, _ = in_rank
carrier = torch_ranks.device_backend()
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
emulated = "OURO_FAKE_GPUS" in os.environ
if emulated:
    kept, replaced = torch_arithmetic.install()
dist.init_process_group(f"cpu:gloo,cuda:{carrier}", init_method=f"file://{store}/store", rank=rank, world_size=size)
def compare(name, on_host, on_device, tolerance):
    (losses, parameters), (mine, my_parameters) = on_host, on_device
    assert len(losses) == STEPS and losses[-1] != losses[0]
    far = max(abs(a - b) for a, b in zip(losses, mine, strict=True))
    for a, b in zip(parameters, my_parameters, strict=True):
        assert b.device == device and a.shape == b.shape
        far = max([far, (a - b.cpu()).abs().max().item()] if a.numel() else [far])
    assert far <= tolerance, f"{name}: {far}, {losses} {mine}"
    print(f"{name}: as over gloo, to {far}", flush=True)


def ddp(where, **options):
    model = DistributedDataParallel(network().to(where), bucket_cap_mb=0.002, **options)
    losses = train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), where, rank)
    return losses, [p.detach() for p in model.parameters()]


def fsdp(where, policy):
    mesh = dist.init_device_mesh(where.type, (size,))
    model = network().to(where)
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    losses = train(model, torch.optim.AdamW(model.parameters(), 0.01), where, rank)
    return losses, [p.detach().to_local() for p in model.parameters()]


def objects():
    """Objects that PyTorch converts to tensors: pickled, of different lengths."""
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    all_of, first = [None] * size, [mine if rank == 0 else None]
    dist.all_gather_object(all_of, mine)
    dist.broadcast_object_list(first, 0, device=device)
    assert [o["rank"] for o in all_of] == list(range(size)) and [len(o["text"]) for o in all_of] == [1000 * r for r in range(size)]
    assert first == [{"rank": 0, "text": ""}], first
    if torch_ranks.is_newer():
        dist.monitored_barrier()


# Sums of more than two terms are associated differently, and the kernels of a GPU associate theirs in another way.
host = torch.device("cpu")
exact, sharded, rounded = (1e-6, 1e-5, 1e-2) if emulated else (1e-4, 1e-3, 1e-1)
objects()
compare("DDP", ddp(host), ddp(device), exact)
compare("DDP, gradients as views", ddp(host, gradient_as_bucket_view=True), ddp(device, gradient_as_bucket_view=True), exact)
full, half = MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
compare("FSDP2", fsdp(host, full), fsdp(device, full), sharded)
compare("FSDP2 in bfloat16", fsdp(host, half), fsdp(device, half), rounded)
dist.destroy_process_group()
