#!/usr/bin/env python3
"""Times PyTorch's own kernels for what ouro's benches time on the same device: a copy and a sum, in bytes that pass through
memory, and a step of fused AdamW, in parameters a second. Prints "NAME VALUE UNIT" lines, medians of rounds.
Run by gpu-check: torch_times.py [--cpu]; --cpu only shows that the program works. Exit code: 0; 77 without PyTorch or a
GPU, with the reason on the last line."""
import statistics
import sys
import time

ROUNDS = 15


def median_seconds(run, cpu, torch):
    """Of ROUNDS rounds, each with enough calls to hide what a launch takes; one round before them is not counted."""
    calls = 1 if cpu else 20
    seconds = []
    for _ in range(ROUNDS + 1):
        if cpu:
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            seconds.append((time.perf_counter() - begin) / calls)
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / calls)
    return statistics.median(seconds[1:])


def main():
    cpu = "--cpu" in sys.argv[1:]
    try:
        import torch
    except ImportError:
        print("SKIP: not installed: PyTorch")
        return 77
    if not cpu and not torch.cuda.is_available():
        print("SKIP: no CUDA device that PyTorch sees")
        return 77
    device = "cpu" if cpu else "cuda"
    count = (1 << 16) if cpu else (64 << 20)  # of floats: 256 MiB, more than any cache of a GPU
    print(f"# PyTorch {torch.__version__}, {count} floats, medians of {ROUNDS} rounds")
    a, b = torch.randn(count, device=device), torch.randn(count, device=device)
    out = torch.empty_like(a)
    gigabytes = count * 4 / 1e9
    print(f"copy {2 * gigabytes / median_seconds(lambda: out.copy_(a), cpu, torch):.1f} GB/s")
    print(f"sum {3 * gigabytes / median_seconds(lambda: torch.add(a, b, out=out), cpu, torch):.1f} GB/s")
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        parameter = torch.nn.Parameter(a.to(dtype))
        parameter.grad = b.to(dtype)
        step = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01, fused=True).step
        step()  # makes the state
        print(f"fused_AdamW_{name} {count / 1e9 / median_seconds(step, cpu, torch):.3f} Gparam/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
