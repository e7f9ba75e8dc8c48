"""Decentralised training as in Decent-DP: each rank has its own model and averages it with one neighbour per step.

Run: torchrun --nproc-per-node 4 torch_decentralised.py
"""
from functools import partial

import digits
import torch
import torch.distributed as dist

import ouro.torch

dist.init_process_group("gloo")  # any backend: the trainer has its own job
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # all ranks start from rank 0's parameters
x, y = digits.load()
model = ouro.torch.GossipDataParallel(
    digits.Convolutional(), partial(ouro.torch.optim_fn_accum_adam, lr=4e-3), topology="ring",
    lr_scheduler_fn=partial(ouro.torch.lr_scheduler_fn_cosine_with_warmup, t_max=120, t_warmup=10), sync_buffer_in_global_avg=True)
for pixels, labels in digits.batches(x, y, rank, size, 16, 120):
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()  # also updates, and averages with the neighbour
apart = model.global_avg(return_d2c=True)
found = digits.accuracy(model, x, y)
model.revert_global_avg()
if rank == 0:
    print(f"decentralised, {size} ranks: {apart:.2g} from the mean of all, which finds {found:.1%} of the test digits")
    assert found > 0.9 and apart > 0
model.close()
dist.destroy_process_group()
