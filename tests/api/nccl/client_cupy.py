# CuPy's NcclCommunicator, unmodified, on numpy arrays: libnccl.so.2 is preloaded into children. Usage: client_cupy.py LIBRARY
import ast
import os
import subprocess
import sys

import torch_place

SIZE = 3
if len(sys.argv) == 2:  # the parent process
    python = torch_place.interpreter_with("cupy.cuda.nccl")
    environment = os.environ | {"LD_PRELOAD": os.path.abspath(sys.argv[1]), "LD_DEBUG": "bindings",
                                "LD_DEBUG_OUTPUT": f"/tmp/ouro-nccl-cupy-{os.getpid()}"}
    unique = subprocess.run(
        [python, "-c", "from cupy.cuda import nccl; print(repr(nccl.get_unique_id()))"],
        env={k: v for k, v in environment.items() if not k.startswith("LD_DEBUG")}, check=True, stdout=subprocess.PIPE,
        text=True).stdout.strip()
    ranks = [subprocess.Popen([python, __file__, sys.argv[1], str(r), unique], env=environment)
             for r in range(SIZE)]
    codes = [r.wait(100) for r in ranks]
    # Checks bindings, not mappings: CuPy opens its own copy too, but nothing may be bound to it.
    bound = set()
    for r in ranks:
        log = f"{environment['LD_DEBUG_OUTPUT']}.{r.pid}"
        for line in open(log, errors="replace"):
            if "cupy_backends" in line and "`nccl" in line and "normal symbol" in line:
                bound.add((line.split("`")[1].split("'")[0], line.split(" to ")[1].split(" [")[0]))
        os.unlink(log)
    wrong = [b for b in bound if os.path.abspath(sys.argv[1]) != os.path.abspath(b[1])]
    print(f"{len(bound)} names bound")
    assert codes == [0] * SIZE, codes
    assert len(bound) > 20 and not wrong, wrong
    sys.exit(0)

import numpy
from cupy.cuda import nccl

rank, unique = int(sys.argv[2]), ast.literal_eval(sys.argv[3])
assert nccl.get_version() == 23007
comm = nccl.NcclCommunicator(SIZE, unique, rank)
assert comm.rank_id() == rank and comm.size() == SIZE and comm.device_id() == 0
for dtype, code in ((numpy.float32, nccl.NCCL_FLOAT32), (numpy.int64, nccl.NCCL_INT64), (numpy.float16, nccl.NCCL_FLOAT16)):
    x = numpy.full(1000, rank + 1, dtype)
    y = numpy.zeros_like(x)
    comm.allReduce(x.ctypes.data, y.ctypes.data, x.size, code, nccl.NCCL_SUM, 0)
    assert (y == 6).all(), y
    comm.reduce(x.ctypes.data, y.ctypes.data, x.size, code, nccl.NCCL_MAX, 2, 0)
    assert rank != 2 or (y == 3).all()
    comm.broadcast(x.ctypes.data, y.ctypes.data, x.size, code, 1, 0)
    assert (y == 2).all()
    comm.bcast(y.ctypes.data, y.size, code, 0, 0)
    wide = numpy.zeros(SIZE * x.size, dtype)
    comm.allGather(x.ctypes.data, wide.ctypes.data, x.size, code, 0)
    assert (wide.reshape(SIZE, -1)[:, 0] == [1, 2, 3]).all()
    comm.reduceScatter(wide.ctypes.data, y.ctypes.data, x.size, code, nccl.NCCL_SUM, 0)
    assert (y == SIZE * (rank + 1)).all()
    nccl.groupStart()
    comm.send(x.ctypes.data, x.size, code, (rank + 1) % SIZE, 0)
    comm.recv(y.ctypes.data, y.size, code, (rank - 1) % SIZE, 0)
    nccl.groupEnd()
    assert (y == (rank - 1) % SIZE + 1).all()
comm.check_async_error()
try:
    comm.allReduce(0, 0, 1, 99, 0, 0)
    raise SystemExit("an unknown type went through")
except nccl.NcclError as e:
    assert "INVALID_ARGUMENT" in str(e), e
comm.destroy()
