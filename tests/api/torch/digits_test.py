# GossipDataParallel and FederatedAverage follow the reference trajectories of Decent-DP and xFFL on the digits
# (tests/golden/README.md, sections 6 and 10), in float64, with the networks of the examples. Usage: digits_test.py
import json
import os
import pathlib
import sys
from functools import partial

import places
import trainers

if not places.arguments():
    trainers.run(__file__, 4)
    sys.exit()

import torch
import torch.distributed as dist

root = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(root / "api/python/examples"))
import digits

from ouro.torch import FederatedAverage, GossipDataParallel, lr_scheduler_fn_cosine_with_warmup, optim_fn_accum_adam

rank, size, folder, _ = places.arguments()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
torch.set_default_dtype(torch.float64)
golden = pathlib.Path(os.environ.get("OURO_GOLDEN_DIR", root / "tests/golden"))
x, y = digits.load()
assert y[digits.TRAINING:][:4].tolist() == [4, 8, 0, 8]


def initial(model):
    with torch.no_grad():
        for pid, (name, p) in enumerate(model.named_parameters()):
            v = torch.sin(0.7 * torch.arange(p.numel()) + pid + 1).reshape(p.shape)
            if "bn" in name:
                p.copy_(0.1 * v + name.endswith("weight"))
            else:
                p.copy_(0.05 * v if p.dim() == 1 else v / p[0].numel() ** 0.5)
    return model


def mean(value):
    t = torch.as_tensor(value).detach().clone()
    dist.all_reduce(t)
    return t / size


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def close(got, want, t, what):
    want = torch.as_tensor(want)
    bound = torch.where(want.abs() < 1e-4, torch.tensor(1e-12), (1e-10 if t <= 10 else 1e-8) * want.abs())
    assert ((torch.as_tensor(got) - want).abs() <= bound).all(), (what, t, got, want)


def decentralised(topology, steps):
    run = json.loads((golden / "decent_dp_real_inputs.json").read_text())["4"][f"digits/{topology}"]
    model = GossipDataParallel(
        initial(digits.Convolutional()), partial(optim_fn_accum_adam, lr=4e-3, decay_rule="upstream_inverted"),
        lr_scheduler_fn=partial(lr_scheduler_fn_cosine_with_warmup, t_max=240, t_warmup=10), topology=topology,
        sync_buffer_in_global_avg=True, bucket_size_in_mb=0.01, round_order="upstream",
        _local_world_size=2 if topology == "alternating-exp-ring" else 1)
    assert sum(p.numel() for p in model.parameters()) == run["num_params"]
    for t, (pixels, labels) in enumerate(digits.batches(x, y, rank, size, 16, steps)):
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        if t % 10 in (0, 1) or t == steps - 1:
            close(mean(loss), run["trajectory"][t][0], t, f"{topology}: loss")
            if t > 0:  # at 0 Decent-DP has not updated yet
                mine = flat(model)
                apart = mean(((mine - mean(mine)) ** 2).sum()).sqrt()
                close(apart, run["trajectory"][t][1], t, f"{topology}: consensus")
    if steps == len(run["trajectory"]):
        model.global_avg(will_revert=False)
        assert abs(digits.accuracy(model, x, y) - run["test_acc"]) < 1e-12, (digits.accuracy(model, x, y), run["test_acc"])
    model.close()
    return f"{topology}: {steps} steps as Decent-DP's"


def federated(sites):
    run = json.loads((golden / "xffl_federated_digits.json").read_text())["4"][f"{sites}/K5"]
    model = initial(digits.Perceptron())
    average = FederatedAverage(model, sites, every=5)
    site = average.groups.layout.federation
    n, q, columns = sites[site.rank], site.local_rank, len(run["trajectory"])
    rows = torch.arange(site.rank, digits.TRAINING, site.count)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    for t in range(columns):
        at = rows[((t * n + q) * 8 + torch.arange(8)) % len(rows)]
        loss = torch.nn.functional.cross_entropy(model(x[at]), y[at])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, m, g in zip(model.parameters(), momentum, grads):
                average.groups.federation.all_reduce(g, op="avg")
                m.mul_(0.9).add_(g) if t else m.copy_(g)
                p -= 0.2 * m
        average.step()
        losses, norms, sums = run["trajectory"][t]
        close(loss.item(), losses[rank], t, f"{sites}: loss")
        close(flat(model).norm(), norms[rank], t, f"{sites}: norm")
        close(flat(model).sum(), sums[rank], t, f"{sites}: sum")
    found = digits.accuracy(model, x, y)
    assert abs(found - run["test_acc_per_rank"][rank]) < 1e-12, (found, run["test_acc_per_rank"])
    average.close()
    return f"sites {sites}: {columns} steps as xFFL's"


told = [decentralised("ring", 240), *(decentralised(t, 31) for t in ("complete", "one-peer-exp", "alternating-exp-ring")),
        federated([2, 2]), federated([3, 1])]
if rank == 0:
    print("\n".join(told))
dist.destroy_process_group()
