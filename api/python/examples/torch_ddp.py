"""Data parallel training over ouro with DistributedDataParallel, as over any other backend.

Run: torchrun --nproc-per-node 4 torch_ddp.py
"""
import digits
import torch
import torch.distributed as dist

import ouro.torch  # noqa: F401  (an installed package needs no import)

dist.init_process_group("ouro")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = digits.load()
model = torch.nn.parallel.DistributedDataParallel(digits.Perceptron())
optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for pixels, labels in digits.batches(x, y, rank, size, 16, 120):
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    optimiser.step()
    optimiser.zero_grad()
if rank == 0:
    print(f"DDP, {size} ranks: {digits.accuracy(model, x, y):.1%} of the test digits")
    assert digits.accuracy(model, x, y) > 0.9
dist.destroy_process_group()
