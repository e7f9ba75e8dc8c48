# FederatedAverage and DiLoCo compared with their formulas, computed for all sites in one process by PyTorch alone:
# every strategy, server rules, weights, filters, buffers, sharded modules, state. Usage: federated_test.py
import sys

import places
import trainers

if not places.arguments():
    trainers.run(__file__, 4)
    sys.exit()

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import ouro
from ouro import train
from ouro.torch import DiLoCo, FederatedAverage

rank, size, folder, _ = places.arguments()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
torch.set_default_dtype(torch.float64)


def network(seed=4):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3),
                               torch.nn.Linear(3, 2))


def site_of(sites, r):
    return next(f for f in range(len(sites)) if r < sum(sites[:f + 1]))


def loss_of(model, site, step):
    g = torch.Generator().manual_seed(100 * site + step)
    x, y = torch.randn(6, 4, generator=g), torch.randn(6, 2, generator=g)
    return ((model(x) - y) ** 2).mean()


def local_step(model, optimiser, site, step):
    loss_of(model, site, step).backward()
    optimiser.step()
    optimiser.zero_grad()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def formula(sites, steps, every, weights=None, server=None, keep=(), buffers=False):
    """The parameters of this rank's site after `steps`; `server(base)`: an optimiser of PyTorch applied to the mean
    difference."""
    weights = torch.tensor(weights or [1.0] * len(sites))
    weights /= weights.sum()
    models = [network() for _ in sites]
    optimisers = [sgd(m) for m in models]
    base = [p.detach().clone() for p in models[0].parameters()]
    outer = server(base) if server else None
    for t in range(steps):
        for f, (m, o) in enumerate(zip(models, optimisers)):
            local_step(m, o, f, t)
        if (t + 1) % every:
            continue
        for i, (name, _) in enumerate(models[0].named_parameters()):
            values = [dict(m.named_parameters())[name] for m in models]
            mean = sum(w * v.detach() for w, v in zip(weights, values))
            if name in keep:
                continue
            if outer:
                base[i].grad = base[i] - mean
            else:
                base[i] = mean
        if outer:
            outer.step()
        for m in models:
            for b, (name, p) in zip(base, m.named_parameters()):
                if name not in keep:
                    p.data = b.clone()
        if buffers:
            for values in zip(*(m.buffers() for m in models)):
                if values[0].is_floating_point():
                    mean = sum(w * v for w, v in zip(weights, values))
                    for v in values:
                        v.copy_(mean)
    return models[site_of(sites, rank)]


def run(average, model, sites, steps, first=0):
    optimiser = sgd(model)
    return [(local_step(model, optimiser, site_of(sites, rank), t), average.step())[1] for t in range(first, steps)]


def far(a, b):
    return max((x.detach() - y.detach()).abs().max().item() for x, y in zip(a, b))


def same_on_all(model):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    all_of = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(all_of, flat)
    return all((v == flat).all() for v in all_of)


def check(name, average, model, wanted, tolerance=1e-12):
    assert far(model.parameters(), wanted.parameters()) < tolerance, (name, rank, far(model.parameters(), wanted.parameters()))
    average.close()
    if rank == 0:
        print(f"{name}: as the formula")


# The mean of the sites: every strategy, sites of other sizes, on several streams. Only the senders' values count.
wanted = {}
assert len(train.strategies()) == 6
for k, strategy in enumerate(train.strategies()):
    sites = [[2, 2], [3, 1], [1, 1, 1, 1]][k % 3]
    if str(sites) not in wanted:
        wanted[str(sites)] = formula(sites, 6, 3)
    model = network(seed=4 + rank)
    average = FederatedAverage(model, sites, every=3, strategy=strategy, streams=1 + k % 2)
    assert run(average, model, sites, 6) == [False, False, True] * 2 and average.rounds == 2
    assert same_on_all(model) and average.groups.layout.federation.count == len(sites)
    check(f"{strategy} {sites}", average, model, wanted[str(sites)])
model = network()
average = FederatedAverage(model, [2, 2], sync=False)
with torch.no_grad():
    model[0].bias.fill_(10.0 if rank == 2 else 4.0 if rank == 0 else -99.0)
average.step()
assert (model[0].bias == 7).all(), model[0].bias
assert average.traffic[0] == (0 if rank in (1, 3) else sum(p.numel() * 8 for p in model.parameters())), average.traffic
assert average.mean_loss(rank + 1.0, 2) == (1.5 / 2 if rank < 2 else 3.5 / 2)

model = network()
average = FederatedAverage(model, 2, every=2, site_weights=[1, 3], filter=lambda name: name != "3.weight", average_buffers=True)
run(average, model, [2, 2], 4)
wanted = formula([2, 2], 4, 2, weights=[1.0, 3.0], keep=["3.weight"], buffers=True)
assert far([b for b in model.buffers() if b.is_floating_point()], [b for b in wanted.buffers() if b.is_floating_point()]) < 1e-12
check("weights, filter and buffers", average, model, wanted)

# Servers: PyTorch's optimisers applied to the mean difference.
diloco = formula([2, 2], 6, 2, server=lambda base: torch.optim.SGD(base, lr=0.7, momentum=0.9, nesterov=True))
model = network()
average = DiLoCo(model, [2, 2], inner_steps=2)
run(average, model, [2, 2], 6)
check("DiLoCo", average, model, diloco)
model = network()
average = FederatedAverage(model, [2, 2], every=2, server=train.adam(0.05))
run(average, model, [2, 2], 6)
check("Adam as a server", average, model, formula([2, 2], 6, 2, server=lambda base: torch.optim.Adam(base, lr=0.05)))
for delta, tolerance in ("bf16", 2e-2), ("int8", 2e-2):
    model = network()
    average = DiLoCo(model, [2, 2], inner_steps=2, delta=delta)
    run(average, model, [2, 2], 6)
    assert same_on_all(model) and far(model.parameters(), diloco.parameters()) > 1e-9
    check(f"DiLoCo, {delta}", average, model, diloco, tolerance)

# A saved state continues with the same bits.
for make in lambda m: DiLoCo(m, 1, inner_steps=2), lambda m: FederatedAverage(m, 1, every=2):
    first = network()
    average = make(first)
    run(average, first, [1] * 4, 3)
    second = network()
    again = make(second)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(average.state_dict())
    for a, m in (average, first), (again, second):
        optimiser = torch.optim.SGD(m.parameters(), lr=0.1)
        for t in range(3, 6):
            local_step(m, optimiser, rank, t)
            a.step()
        assert a.rounds == 3
    assert far(first.parameters(), second.parameters()) == 0
    average.close()
    again.close()

# A module that each site shards: the corresponding shards of the sites are averaged.
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "shard"))
model = network(seed=4 + rank // 2)
before = [sum(p.detach() for p in values) / 2 for values in zip(network(4).parameters(), network(5).parameters())]
fully_shard(model, mesh=mesh["shard"])
average = FederatedAverage(model, 2, shards=2)
assert average.groups.layout.is_sender
average.step()
wanted = network()
with torch.no_grad():
    for p, b in zip(wanted.parameters(), before):
        p.copy_(b)
sharded = [p.full_tensor() for p in model.parameters()]
assert far(sharded, wanted.parameters()) < 1e-15
if rank == 0:
    print("FSDP2: as the formula")
average.close()


places.raises(ouro.InvalidError, "the world has 4", lambda: FederatedAverage(network(), [3, 3]))
places.raises(ValueError, "expected one of layer_by_layer", lambda: FederatedAverage(network(), 2, strategy="bucket"))
places.raises(ValueError, "server", lambda: FederatedAverage(network(), 2, delta="int8"))
places.raises(TypeError, "inner_steps", lambda: DiLoCo(network(), 2, every=1))
places.raises(TypeError, "FederatedAverage", lambda: DiLoCo(network(), 2, server=train.fed_avg()))
places.raises(ZeroDivisionError, "", lambda: FederatedAverage(network(), 2, filter=lambda name: 1 // 0))
average = FederatedAverage(network(), 2, strategy="bucket_flatten" if rank == 0 else "layer_by_layer")
places.raises(ouro.Error, "", average.step)
dist.destroy_process_group()
print("rank is well")
