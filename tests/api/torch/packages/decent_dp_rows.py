# decent_dp: topologies, training with every topology and optimiser, averages. A rank of packages.py.
from rows import backend, carried, finish, give, rank, row, size

from functools import partial

import torch
import torch.distributed as dist
from loguru import logger

logger.remove()
from decent_dp import optim
from decent_dp.ddp import DecentralizedDataParallel
from decent_dp.topo import Edge, Topology, TopologyReg
from decent_dp.utils import initialize_dist

give("initialize_dist", initialize_dist())
OWN = DecentralizedDataParallel
ADAM = partial(optim.optim_fn_accum_adam, lr=0.01)
SCHEDULE = partial(optim.lr_scheduler_fn_cosine_with_warmup, t_max=8, t_warmup=2)


@TopologyReg.register("weighted")
class Weighted(Topology):
    def _get_topo_edges(self):
        return [[Edge(list(range(size)), 0.7)], [Edge(list(range(size)), 0.4)]]


@TopologyReg.register("wrong")
class Wrong(Topology):
    def _get_topo_edges(self):
        return [[Edge([0], 1.0)]]


def edges(name, nodes):
    topology = TopologyReg.registry[name](nodes)
    return [[e.ranks, e.weight] for e in map(topology.get_edge, range(5))]


def network():
    torch.manual_seed(3)  # a bias before a batch norm has only rounding as its gradient, which Adam makes large
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
                               torch.nn.Linear(64, 10))


def train(module=DecentralizedDataParallel, optim_fn=ADAM, micro=1, factor=1.0, last=False, average=False, scaled=False, **options):
    if scaled:
        options["scaler"] = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    model = network()
    model = module(model.to(memory_format=torch.channels_last) if last else model, optim_fn, **options)
    model.set_adaptive_factor(factor)
    g = torch.Generator().manual_seed(rank)
    told = []
    model.train()
    for _ in range(8):
        for part in range(micro):
            model.set_accumulate_grad(part < micro - 1)
            x, y = torch.randn(8, 1, 6, 6, generator=g), torch.randint(10, (8,), generator=g)
            loss = torch.nn.functional.cross_entropy(model(x), y) / micro
            (options["scaler"].scale(loss) if scaled else loss).backward()
            told.append(loss.item())
    if "lr_scheduler_fn" in options:
        told.append(model.get_lr())
    told += list(model.parameters())
    if average:
        told.append(model.global_avg(return_d2c=True))
        told += [*model.parameters(), *model.state_dict().values()]
        model.revert_global_avg()
        told += [p for _, p in model.named_parameters()]
        model.global_avg(will_revert=False)
        told.append(model.eval()(torch.ones(1, 1, 6, 6)))
    if hasattr(model, "close"):
        model.close()
    return told


for nodes in (1, 2):
    for name in ("complete", "ring", "one-peer-exp", "alternating-exp-ring", "weighted", "wrong"):
        row(f"Topology {name}, {nodes} a node", lambda: edges(name, nodes))
for name in ("complete", "ring", "one-peer-exp", "weighted"):
    row(f"train {name}", lambda: train(topology=name, _local_world_size=1))
if size == 4:
    row("train alternating-exp-ring", lambda: train(topology="alternating-exp-ring", _local_world_size=2))
RULES = {"adam": optim.optim_fn_adam, "adamw": optim.optim_fn_adamw, "accum_adamw": optim.optim_fn_accum_adamw,
         "sgd": lambda params: torch.optim.SGD([p for _, p in params], lr=0.1, momentum=0.9)}
for name, rule in RULES.items():
    row(f"train {name}", lambda: train(optim_fn=rule, topology="ring"))
CASES = {"schedule": {"lr_scheduler_fn": SCHEDULE}, "clipping": {"grad_clip_norm": 0.1}, "loss scaling": {"scaled": True},
         "no view": {"param_as_bucket_view": False}, "channels_last": {"last": True}, "accumulation": {"micro": 3},
         "adaptive factor": {"factor": 0.3}, "global_avg": {"average": True, "sync_buffer_in_global_avg": True},
         "small buckets": {"bucket_size_in_mb": 0.0005}}
for name, options in CASES.items():
    row(name, lambda: train(topology="ring", **options))

# ouro's own in its place: over gloo, Decent-DP itself runs.
if backend == "ouro":
    from ouro.torch import GossipDataParallel

    OWN = partial(GossipDataParallel, round_order="upstream")
for name, options in {**{n: {"topology": n} for n in ("complete", "ring", "one-peer-exp")}, "schedule": {"lr_scheduler_fn": SCHEDULE},
                      "buckets": {"bucket_size_in_mb": 0.0005, "topology": "ring", "micro": 2}, "adamw": {"optim_fn": optim.optim_fn_adamw},
                      "factor": {"factor": 0.3, "topology": "ring"}, "channels_last": {"last": True}}.items():
    row(f"GossipDataParallel {name}", lambda: train(OWN, **{"topology": "complete", "_local_world_size": 1, **options}))
carried()
dist.destroy_process_group()
finish()
