"""Federated training: two sites train on their own, and average from time to time.

Run: torchrun --nproc-per-node 4 torch_federated.py
"""
import digits
import torch
import torch.distributed as dist

import ouro.torch

dist.init_process_group("ouro")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
x, y = digits.load()
model = digits.Perceptron()
average = ouro.torch.FederatedAverage(model, sites=max(1, size // 2), every=10)
site = average.groups.layout.federation
optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for pixels, labels in digits.batches(x, y, rank, size, 16, 120):
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    for p in model.parameters():
        average.groups.federation.all_reduce(p.grad, op="avg")  # the ranks of a site train one model
    optimiser.step()
    optimiser.zero_grad()
    average.step()
found = digits.accuracy(model, x, y)
if rank == 0:
    print(f"federated, {site.count} sites of {site.sizes} ranks: {average.rounds} averages, {found:.1%} of the test digits")
    assert found > 0.9 and average.rounds == 12
average.close()
dist.destroy_process_group()
