#!/usr/bin/env python3
"""PyTorch's collectives and DistributedDataParallel over ouro beside gloo: in the same processes, in turn.

Usage: bench/torch_beside_gloo.py [--ranks N]... [--rounds R] [--quick]

Ranks are processes of this host, one thread each. A round measures ouro, then gloo, for each size; the median of the rounds is
printed with the ratio of the two, and the ratio of the shortest rounds. A step trains a network with SGD; "alone" is the same step without DDP on all ranks at once,
so that it has the same cores. Needs PyTorch: OURO_TORCH_ENV, or what tools/torch-env has made. On a machine that does
other things, too, only the ratios say something. --quick: fewer and smaller cases.
"""
import argparse
import copy
import os
import statistics
import sys
import time

import torch_job

SIZES = {8: 300, 1 << 10: 300, 64 << 10: 100, 1 << 20: 30, 16 << 20: 4}  # bytes -> calls of a round
NETWORKS = {"MLP, 0.1 M": ((64, 256, 256, 10), 20), "MLP, 25 M": ((1024, 4096, 4096, 1000), 2)}  # widths, steps of a round


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    if not 1 <= options.rounds <= 100 or any(not 2 <= n <= 64 for n in options.ranks or []):
        sys.exit("torch_beside_gloo.py: --rounds takes 1 to 100, --ranks 2 to 64")
    print("| ranks | what | ouro | gloo | gloo / ouro | of the shortest | without DDP |\n|---|---|---|---|---|---|---|", flush=True)
    for n in options.ranks or [2, 4]:
        torch_job.run(__file__, ["--rounds", str(options.rounds), *["--quick"] * options.quick], n)


def rank_main():
    import torch
    import torch.distributed as dist

    import ouro.torch

    options = parse()
    dist.init_process_group("ouro")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {"ouro": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    assert "ouro" in ouro.torch.carrier() and "ouro" not in ouro.torch.carrier(groups["gloo"])

    def median_of(cases, repeats):
        """{name: (median, least) seconds of one call}, the cases in turn in each round; the slowest rank's."""
        times = {name: [] for name in cases}
        for name, f in cases.items():
            f()  # warm-up, not measured: makes buffers and connections
        for _ in range(options.rounds):
            for name, f in cases.items():
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(repeats):
                    f()
                each = torch.tensor((time.perf_counter() - begin) / repeats, dtype=torch.float64)
                dist.all_reduce(each, dist.ReduceOp.MAX)
                times[name].append(each.item())
        return {name: (statistics.median(t), min(t)) for name, t in times.items()}

    def say(what, t, more=""):
        if rank == 0:
            ours, gloos = t["ouro"], t["gloo"]
            print(f"| {size} | {what} | {ours[0] * 1e6:,.0f} us | {gloos[0] * 1e6:,.0f} us | {gloos[0] / ours[0]:.1f} | "
                  f"{gloos[1] / ours[1]:.1f} | {more} |", flush=True)

    for bytes_, repeats in list(SIZES.items())[:3 if options.quick else None]:
        x = torch.zeros(bytes_ // 4)
        calls = {name: lambda g=g: dist.all_reduce(x, group=g) for name, g in groups.items()}
        say(f"all_reduce {bytes_} B", median_of(calls, repeats))

    for what, (widths, steps) in list(NETWORKS.items())[:1 if options.quick else None]:
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        cases = {}
        for name in ("alone", *groups):
            torch.manual_seed(0)
            model = copy.deepcopy(torch.nn.Sequential(*layers[:-1]))
            if name != "alone":
                model = torch.nn.parallel.DistributedDataParallel(model, process_group=groups[name])
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            inputs, labels = torch.randn(32, widths[0]), torch.randint(0, widths[-1], (32,))

            def step(model=model, optimizer=optimizer, inputs=inputs, labels=labels):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            cases[name] = step
        t = median_of(cases, steps)
        say(f"DDP step, {what}", t, f"{t['alone'][0] * 1e6:,.0f} us")
    dist.destroy_process_group()


if __name__ == "__main__":
    rank_main() if os.environ.get("IN_RANK") else main()
