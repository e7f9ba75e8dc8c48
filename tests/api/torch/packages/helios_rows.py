# helios.core.distributed: every function. A rank of packages.py.
from rows import backend, carried, finish, give, rank, row, size, without_its_init

import contextlib
import io
import os

import torch

without_its_init("helios", "helios.core")  # their __init__ needs OpenCV, ONNX and Matplotlib
from helios.core import distributed as helios

give("is_using_torchrun", helios.is_using_torchrun())
give("inactive", [helios.is_dist_active(), *vars(helios.get_dist_info()).values()])
row("gather_into_tensor, inactive", lambda: helios.gather_into_tensor(torch.zeros(1), (1,)))
row("all_reduce_tensors, inactive", lambda: helios.all_reduce_tensors(torch.zeros(1)))
row("safe_barrier, inactive", helios.safe_barrier)
row("init_dist, rank alone", lambda: helios.init_dist("gloo", rank=rank))
port = os.environ["MASTER_PORT"]
helios.init_dist("gloo", rank, size)
give("init_dist", [helios.is_dist_active(), os.environ["MASTER_PORT"] == "12355"])
give("get_dist_info", list(vars(helios.get_dist_info()).values()))
give("its fields", [helios.get_local_rank(), helios.get_global_rank(), helios.get_local_world_size(), helios.get_world_size()])
for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool):
    row(f"all_reduce_tensors {dtype}", lambda: helios.all_reduce_tensors((torch.arange(6) * (rank + 1) % 5).to(dtype)))
for op in ("MAX", "MIN", "PRODUCT"):
    row(f"all_reduce_tensors {op}",
        lambda: helios.all_reduce_tensors(torch.tensor([rank + 1.5, -rank]), op=getattr(torch.distributed.ReduceOp, op)))
row("all_reduce_tensors, list", lambda: helios.all_reduce_tensors([torch.tensor(1.0), torch.tensor(2.0)]))  # it moves them to a GPU
row("gather_into_tensor", lambda: helios.gather_into_tensor(torch.ones(3), (3 * size,)))  # likewise


def printed(call, **on):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        call("text", 5, **on)
    return out.getvalue()


for k in (0, 1):
    row(f"global_print {k}", lambda: printed(helios.global_print, global_rank=k))
    row(f"local_print {k}", lambda: printed(helios.local_print, local_rank=k))
row("safe_barrier", helios.safe_barrier)
carried()
row("shutdown_dist", helios.shutdown_dist)
give("is_dist_active", helios.is_dist_active())
os.environ["MASTER_PORT"] = port
helios.init_dist("gloo")  # as started by torchrun
row("init_dist, from the environment", lambda: helios.all_reduce_tensors(torch.ones(2)))
helios.shutdown_dist()
finish()
