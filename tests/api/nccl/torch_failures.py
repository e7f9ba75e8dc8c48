# PyTorch's process groups over NCCL, unmodified, on emulated devices: a rank that is late or killed, and abort during
# an operation. Usage: torch_failures.py RUNTIME DRIVER LIBRARY PART [VARIABLE=VALUE]...
import re
import signal
import sys
import time

import torch_ranks

PARTS = {
    # What happens to rank 1: the exit codes of both ranks, and the text that rank 0 prints.
    "late": ([-signal.SIGABRT, 0], r"Operation timed out|caught collective operation timeout"),
    "killed": ([-signal.SIGABRT, -signal.SIGKILL], r"another rank died|rank 1 \(.*its process ended"),
    # It is a race whether PyTorch's watchdog on rank 1 notices, and ends that rank, before it leaves.
    "abort": ([0, (0, -signal.SIGABRT)], r"aborted after"),
}
# Otherwise PyTorch waits for reports about pending operations before it ends the process.
WITHOUT_REPORTS = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1", "TORCH_FR_DUMP_ON_TIMEOUT": "0", "TORCH_FR_BUFFER_SIZE": "0",
                   "TORCH_NCCL_COORD_CHECK_MILSEC": "100"}
in_rank = torch_ranks.arguments()
if not in_rank:
    part = sys.argv[4]
    codes, text = PARTS[part]
    begin = time.monotonic()
    variables = torch_ranks.emulated(sys.argv[1:4], 2) | WITHOUT_REPORTS | dict(v.split("=") for v in sys.argv[5:])
    texts = torch_ranks.run(__file__, 2, part, expected=codes, seconds=100, **variables)
    print(*(line[:240] for line in texts[0].splitlines() if re.search(text, line)), f"{time.monotonic() - begin:.1f} s", sep="\n")
    assert re.search(text, texts[0]), texts[0]
    sys.exit()

import datetime
import os

import torch
import torch.distributed as dist

rank, size, store, (part,) = in_rank
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", init_method=f"file://{store}/store", rank=rank, world_size=size, device_id=device)
x = torch.ones(1000).to(device)
dist.all_reduce(x)
assert (x.cpu() == 2).all()
if rank == 1:
    done = f"{store}/done"
    if part == "killed":
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + 60
    while not os.path.exists(done) and time.monotonic() < end and os.getppid() != 1:
        time.sleep(0.05)
    os._exit(0)
options = dist.AllreduceOptions()
if part == "late":  # the two groups are given the time-out in different ways
    options.timeout = datetime.timedelta(seconds=3)
    dist.distributed_c10d._set_pg_timeout(options.timeout, dist.group.WORLD)
work = dist.group.WORLD.allreduce([x], options)
if part == "abort":
    time.sleep(0.5)
    assert not work.is_completed()
    begin = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    print(f"aborted after {time.monotonic() - begin:.2f} s", flush=True)
else:
    # PyTorch ends the process; rank 1 may leave only after that, because its leaving would be a reason, too.
    if os.fork() == 0:
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.05)
        open(f"{store}/done", "w").close()
        os._exit(0)
    work.wait()
    x.cpu()
    time.sleep(30)
    raise SystemExit("it never ended")
open(f"{store}/done", "w").close()
