# GossipDataParallel compared with the formula of decentralised training, computed for all ranks in one process by
# PyTorch alone; and other things that users do: schedules, accumulation, averages, state. Usage: gossip_test.py RANKS
# (a power of two)
import sys

import places
import trainers

if not places.arguments():
    trainers.run(__file__, int(sys.argv[1]))
    sys.exit()

import torch
import torch.distributed as dist

import ouro
from ouro import train
from ouro.torch import DecentralizedDataParallel, GossipDataParallel, optim_fn_adamw

rank, size, folder, _ = places.arguments()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
torch.set_default_dtype(torch.float64)
assert DecentralizedDataParallel is GossipDataParallel


def network(channels_last=False):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(12, 7), torch.nn.Tanh(),
                                torch.nn.Linear(7, 2))
    return model.to(memory_format=torch.channels_last) if channels_last else model


def loss_of(model, r, step, part=0):
    g = torch.Generator().manual_seed(1000 * r + 10 * step + part)
    x, y = torch.randn(6, 2, 4, 4, generator=g), torch.randn(6, 2, generator=g)
    return ((model(x) - y) ** 2).mean()


def formula(optim_fn, steps, topology, order, schedule=None, factor=1.0, micro=1, clip=None):
    """Parameters of this rank after `steps`, and all its losses."""
    models = [network() for _ in range(size)]
    optimisers = [optim_fn(list(m.named_parameters())) for m in models]
    schedules = [schedule(o) for o in optimisers] if schedule else []
    losses = []
    for t in range(steps):
        for r, m in enumerate(models):
            for part in range(micro):
                loss = loss_of(m, r, t, part)
                loss.backward()
                losses += [loss.item()] if r == rank else []
        if t > 0:
            w = torch.tensor(topology.matrix(t - 1 if order == "sequential" else 1 if t == 1 else t + 1))
            for values in zip(*(m.parameters() for m in models)):
                mixed = torch.einsum("ij,j...->i...", w, torch.stack([v.detach() for v in values]))
                for v, y in zip(values, mixed):
                    v.data = (1 - factor) * v.data + factor * y
        for o, m in zip(optimisers, models):
            if clip:
                torch.nn.utils.clip_grad_norm_(m.parameters(), clip)
            o.step()
            o.zero_grad()
        for s in schedules:
            s.step()
    return [p.detach() for p in models[rank].parameters()], losses


def trained(wrapped, steps, micro=1):
    losses = []
    for t in range(steps):
        for part in range(micro):
            wrapped.set_accumulate_grad(part < micro - 1)
            loss = loss_of(wrapped, rank, t, part)
            loss.backward()
            losses.append(loss.item())
    return losses


def far(a, b):
    return max((x.detach() - y).abs().max().item() for x, y in zip(a, b))


def groups(make):
    """Two parameter groups, with and without weight decay."""
    return lambda params: make([{"params": [p for n, p in params if "bias" in n], "weight_decay": 0.0},
                                {"params": [p for n, p in params if "bias" not in n], "weight_decay": 0.05}])


def plain(make):
    return lambda params: make([p for _, p in params])


def decays(optimiser):
    return torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.8)


class Cycles(torch.optim.lr_scheduler.OneCycleLR):
    """Sets momentum (or beta1) and decay in addition to the rate."""

    def __init__(self, optimiser):
        super().__init__(optimiser, max_lr=0.1, total_steps=12)

    def step(self, *epoch):
        super().step(*epoch)
        for g in self.optimizer.param_groups:
            g["weight_decay"] = 0.01 * self.last_epoch


def hooked(params):
    def halve(o, *_):
        for p in o.param_groups[0]["params"]:
            p.grad.mul_(0.5)

    optimiser = sgd(params)
    optimiser.register_step_pre_hook(halve)
    return optimiser


def preloaded(params):
    optimiser = sgd(params)
    for _, p in params:
        optimiser.state[p]["momentum_buffer"] = torch.full_like(p, 0.1)
    return optimiser


adamw = groups(lambda g: torch.optim.AdamW(g, lr=0.02))
sgd = plain(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True))
rmsprop = plain(lambda p: torch.optim.RMSprop(p, lr=0.01))  # ouro has no such rule
CASES = [  # name, optim_fn, options of the trainer, of the formula and the loop, channels_last
    ("adamw", adamw, {}, {}, False),
    ("adamw-ring", adamw, {"topology": "ring", "round_order": "upstream", "bucket_size_in_mb": 0}, {}, True),
    ("scheduled", adamw, {"topology": "ring", "lr_scheduler_fn": decays}, {"schedule": decays}, False),
    ("cycled", sgd, {"topology": "ring", "lr_scheduler_fn": Cycles}, {"schedule": Cycles}, False),
    ("cycled-adamw", adamw, {"topology": "ring", "lr_scheduler_fn": Cycles}, {"schedule": Cycles}, False),
    ("hooked", hooked, {"topology": "ring"}, {}, False),
    ("preloaded", preloaded, {"topology": "ring"}, {}, True),
    ("sgd", sgd, {"topology": "one-peer-exp", "param_as_bucket_view": False}, {}, True),
    ("accumulated", sgd, {"topology": "ring", "bucket_size_in_mb": 0.0005}, {"micro": 3}, False),
    ("adaptive", sgd, {"topology": "ring"}, {"factor": 0.4}, False),
    ("rmsprop", rmsprop, {"topology": "ring", "bucket_size_in_mb": 0}, {}, True),
    ("rmsprop-clipped", rmsprop, {"grad_clip_norm": 0.03, "clip_scope": "global"}, {"clip": 0.03}, False),
    ("rmsprop-scheduled", rmsprop, {"param_as_bucket_view": False, "lr_scheduler_fn": decays}, {"schedule": decays}, False),
]
for name, optim_fn, options, more, last in CASES:
    model = network(last)
    before = [p.data_ptr() for p in model.parameters()]
    wrapped = GossipDataParallel(model, optim_fn, **options)
    wrapped.set_adaptive_factor(more.get("factor", 1.0))
    micro = more.get("micro", 1)
    losses = trained(wrapped, 7, micro)
    topology = ouro.Topology(options.get("topology", "complete"), size)
    wanted, wanted_losses = formula(optim_fn, 7, topology, options.get("round_order", "sequential"), **more)
    assert far(wrapped.parameters(), wanted) < 1e-12, (name, rank, far(wrapped.parameters(), wanted))
    assert max(abs(a - b) for a, b in zip(losses, wanted_losses)) < 1e-12 and len(losses) == len(wanted_losses), name
    assert all(p.grad is None for p in model.parameters()) and wrapped.steps == 7
    stayed = [p.data_ptr() == b for p, b in zip(model.parameters(), before)]
    assert all(stayed) if options.get("param_as_bucket_view") is False else not any(stayed), (name, stayed)
    assert model[0].weight.is_contiguous() != last
    if options.get("lr_scheduler_fn") is decays:
        assert abs(wrapped.get_lr() - (0.02 if optim_fn is adamw else 0.01) * 0.8**7) < 1e-12, wrapped.get_lr()
    wrapped.close()
    if rank == 0:
        print(f"{name}: 7 steps as the formula")

# The mean of all ranks, and back; state under Decent-DP's names, and loaded into a plain module.
wrapped = GossipDataParallel(network(), sgd, topology="ring")
trained(wrapped, 3)
mine = [p.detach().clone() for p in wrapped.parameters()]
mean = [p.clone() for p in mine]
for p in mean:
    dist.all_reduce(p)
    p /= size
distance = wrapped.global_avg(return_d2c=True)
for _ in range(2):  # a step during an average is refused, every time, and has no effect
    places.raises(ouro.InvalidError, "in force", lambda: loss_of(wrapped, rank, 9).backward())
assert far(wrapped.parameters(), mean) < 1e-14
assert abs(distance - sum((a - b).pow(2).sum() for a, b in zip(mine, mean)).sqrt().item()) < 1e-12
wrapped.revert_global_avg()
assert far(wrapped.parameters(), mine) == 0
for t in (3, 4):
    loss_of(wrapped, rank, t).backward()
assert far(wrapped.parameters(), formula(sgd, 5, ouro.Topology("ring", size), "sequential")[0]) < 1e-12 and wrapped.steps == 5
mine = [p.detach().clone() for p in wrapped.parameters()]
state = wrapped.state_dict()
assert list(state) == [f"_model.{n}" for n in network().state_dict()]
other = network()
other.load_state_dict({n.removeprefix("_model."): v for n, v in state.items()})
assert far(other.parameters(), mine) == 0
wrapped.load_state_dict({n: torch.full_like(v, 0.25) for n, v in state.items()})
assert all((p == 0.25).all() for p in wrapped.parameters())
wrapped.close()

# A saved state continues with the same bits, whichever side updates.
for optim_fn in (adamw, rmsprop):
    def make():
        return GossipDataParallel(network(), optim_fn, lr_scheduler_fn=decays, topology="ring", bucket_size_in_mb=0)

    first = make()
    trained(first, 3)
    saved = first.save()
    second = make()
    second.load(saved)
    for t in (8, 9):
        for w in (first, second):
            loss_of(w, rank, t).backward()
    assert far(first.parameters(), list(second.parameters())) == 0 and first.get_lr() == second.get_lr()
    first.close()
    second.close()

# ouro's own rules; a loss scale that all ranks agree on; parameters that a step does not use; clipping.
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
wrapped = GossipDataParallel(network(), optim_fn_adamw, lr_scheduler_fn=lambda rule: train.cosine_with_warmup(rule.lr, 10, 2),
                             topology="ring", scaler=scaler, grad_clip_norm=0.1, clip_scope="global")
assert wrapped.get_lr() == 0
for t in range(4):
    loss = loss_of(wrapped, rank, t) * (float("inf") if t == 1 and rank == 1 else 1)
    scaler.scale(loss).backward()
assert scaler.get_scale() == 1024, scaler.get_scale()  # halved once, doubled once
assert all(p.isfinite().all() for p in wrapped.parameters()) and 0 < wrapped.get_lr() < 1e-3
wrapped.close()
model = network()
wrapped = GossipDataParallel(model, sgd, find_unused=True)
for t in range(2):
    (loss_of(wrapped, rank, t) if rank or t == 0 else model[:4](torch.randn(6, 2, 4, 4)).sum()).backward()
wrapped.close()

# A backward pass that raises midway ends training: no later pass counts as a step.
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("boom")


model = network()
wrapped = GossipDataParallel(model, sgd, topology="ring")
loss_of(wrapped, rank, 0).backward()
places.raises(RuntimeError, "boom", lambda: model[3:](Boom.apply(model[:3](torch.randn(6, 2, 4, 4)))).sum().backward())
for t in (1, 2):
    places.raises(RuntimeError, "did not end", lambda: loss_of(wrapped, rank, t).backward())
assert wrapped.steps == 1

# What the fused update cannot reproduce is reported, not ignored.
for words, late in (("hooks of its step", lambda o: o.register_step_post_hook(lambda *_: None)),
                    ("state of its parameters", lambda o: o.state.update({p: {"step": 1} for p in o.param_groups[0]["params"]})),
                    ("maximize of parameter group 0", lambda o: o.param_groups[0].update(maximize=True)),
                    ("momentum of parameter group 0", lambda o: o.param_groups[0].update(momentum=0.0))):
    made = []
    wrapped = GossipDataParallel(network(), lambda params: made.append(sgd(params)) or made[-1])
    loss_of(wrapped, rank, 0).backward()
    late(made[0])
    places.raises(NotImplementedError, words, lambda: loss_of(wrapped, rank, 1).backward())

# Mistakes are errors on every rank, and an exception of an optim_fn is raised.
model = network()
wrapped = GossipDataParallel(model, sgd)
use = model if rank else model[:4]
places.raises(ouro.InvalidError, "no gradient of parameter '5.", lambda: use(torch.randn(6, 2, 4, 4)).sum().backward())
wrapped = GossipDataParallel(network(), lambda params: 7 if rank == 0 else sgd(params))
places.raises(TypeError if rank == 0 else ouro.Error, "returned int" if rank == 0 else "", lambda: loss_of(wrapped, rank, 0).backward())
places.raises(ouro.InvalidError, "no-such", lambda: GossipDataParallel(network(), sgd, topology="no-such"))
places.raises(TypeError, "it is SGD", lambda: GossipDataParallel(model, torch.optim.SGD(model.parameters())))
places.raises(TypeError, "it is Rule", lambda: GossipDataParallel(model, train.sgd()))
places.raises(TypeError, "lr_scheduler_fn", lambda: GossipDataParallel(model, sgd, 0.1))
alone = ouro.init(0, 1, id=ouro.unique_id())
places.raises(ValueError, "x: its library does not lend its memory", lambda: alone.world.all_reduce(torch.ones(3, requires_grad=True)))
dist.destroy_process_group()
print("rank is well")
