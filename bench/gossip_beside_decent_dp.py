#!/usr/bin/env python3
"""A step of ouro.torch.GossipDataParallel beside one of Decent-DP over gloo: in the same processes, in turn.

Usage: bench/gossip_beside_decent_dp.py [--ranks N]... [--rounds R] [--topology NAME] [--batch B] [--quick]

Ranks are processes of this host, one thread each. Both train the same network on the same data with AccumAdamW (Decent-DP's,
and the rule of ouro that takes its place), in rounds of some steps; the median of the rounds is printed with the ratio of the
two, and "alone": forward and backward pass alone, on all ranks at once, which is the floor. The losses of both must be the
same in the first steps. Needs PyTorch and Decent-DP: tools/torch-env --packages. --quick: the small network only.
"""
import argparse
import functools
import os
import statistics
import sys
import time

import torch_job


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    if not 1 <= options.rounds <= 100 or not 1 <= options.batch <= 4096 or any(not 2 <= n <= 64 for n in options.ranks or []):
        sys.exit("gossip_beside_decent_dp.py: --rounds takes 1 to 100, --batch 1 to 4096, --ranks 2 to 64")
    packages = torch_job.torch_place.folder() / "packages"
    if not (packages / "decent_dp").is_dir():
        sys.exit(f"gossip_beside_decent_dp.py: Decent-DP is not in {packages}; tools/torch-env --packages installs it")
    print("| ranks | network | ouro | Decent-DP, gloo | Decent-DP / ouro | alone |\n|---|---|---|---|---|---|", flush=True)
    for n in options.ranks or [2, 4]:
        torch_job.run(__file__, sys.argv[1:], n, torch_job.TREE / "api/python/examples", packages)


def rank_main():
    import digits
    import torch
    import torch.distributed as dist
    from loguru import logger

    logger.remove()
    from decent_dp.ddp import DecentralizedDataParallel
    from decent_dp.optim import optim_fn_accum_adamw

    from ouro.torch import GossipDataParallel

    options = parse()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    def large():
        layers = [(1024, 4096), (4096, 4096), (4096, 1000)]
        return torch.nn.Sequential(*[m for a, b in layers for m in (torch.nn.Linear(a, b), torch.nn.ReLU())][:-1])

    networks = {"digits CNN, 3,834": (digits.Convolutional, (1, 8, 8), 10, 30), "MLP, 25 M": (large, (1024,), 1000, 2)}
    for what, (make, shape, classes, steps) in list(networks.items())[:1 if options.quick else None]:
        rule = functools.partial(optim_fn_accum_adamw, lr=1e-3)
        g = torch.Generator().manual_seed(rank)
        x, y = torch.randn(options.batch, *shape, generator=g), torch.randint(classes, (options.batch,), generator=g)

        def model(wrap):
            torch.manual_seed(0)
            return wrap(make())

        models = {"ouro": model(lambda m: GossipDataParallel(m, rule, topology=options.topology, round_order="upstream")),
                  "Decent-DP": model(lambda m: DecentralizedDataParallel(m, rule, topology=options.topology)), "alone": model(lambda m: m)}
        times = {name: [] for name in models}

        def step(name):
            loss = torch.nn.functional.cross_entropy(models[name](x), y)
            loss.backward()
            if name == "alone":
                models[name].zero_grad()
            return loss.item()

        # Warm-up, not measured: makes buckets and connections. Decent-DP begins in its second step.
        losses = {name: [step(name) for _ in range(5)] for name in models}
        far = max(abs(a - b) for a, b in zip(losses["ouro"], losses["Decent-DP"]))
        assert far < 1e-4 < abs(losses["ouro"][-1] - losses["alone"][-1]), f"the two do not train alike: {losses}"
        for _ in range(options.rounds):
            for name in models:
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(steps):
                    step(name)
                each = torch.tensor((time.perf_counter() - begin) / steps, dtype=torch.float64)
                dist.all_reduce(each, dist.ReduceOp.MAX)
                times[name].append(each.item())
        t = {name: statistics.median(of) for name, of in times.items()}
        if rank == 0:
            print(f"| {size} | {what} | {t['ouro'] * 1e3:.2f} ms | {t['Decent-DP'] * 1e3:.2f} ms | {t['Decent-DP'] / t['ouro']:.1f} | "
                  f"{t['alone'] * 1e3:.2f} ms |", flush=True)
        models["ouro"].close()
    dist.destroy_process_group()


if os.environ.get("IN_RANK"):
    rank_main()
else:
    main()
