"""Sharded training over ouro: FSDP2, which splits parameters, gradients and optimiser states into one part per rank.

Run: torchrun --nproc-per-node 4 torch_fsdp2.py
"""
import digits
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import ouro.torch  # noqa: F401

dist.init_process_group("ouro")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = digits.load()
model = digits.Perceptron()
mesh = dist.init_device_mesh("cpu", (size,))
for layer in (model.fc1, model.fc2, model):
    fully_shard(layer, mesh=mesh)
optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
for pixels, labels in digits.batches(x, y, rank, size, 16, 120):
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    optimiser.step()
    optimiser.zero_grad()
held = sum(p.to_local().numel() for p in model.parameters())
found = digits.accuracy(model, x, y)
if rank == 0:
    print(f"FSDP2, {size} ranks: {held} of {sum(p.numel() for p in model.parameters())} parameters here, {found:.1%} of the test digits")
    assert found > 0.9
dist.destroy_process_group()
