# NVIDIA's nccl4py, unmodified, on numpy arrays: libnccl.so.2 is preloaded into children. Usage: client_nccl4py.py LIBRARY
import os
import subprocess
import sys
import tempfile
import time

import torch_place

SIZE = 3
if len(sys.argv) == 2:  # the parent process
    python = torch_place.interpreter_with("nccl.bindings.nccl")
    environment = os.environ | {"LD_PRELOAD": os.path.abspath(sys.argv[1])}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([python, __file__, sys.argv[1], str(r), folder + "/id"], env=environment)
                 for r in range(SIZE)]
        codes = [r.wait(100) for r in ranks]
    assert codes == [0] * SIZE, codes
    sys.exit(0)

import ctypes

import numpy
from nccl.bindings import nccl

rank, place = int(sys.argv[2]), sys.argv[3]
assert nccl.get_version() == 23007
# Its own loader has found the preloaded library: its names resolve to it.
ours = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOLOAD | os.RTLD_NOW)
ours.ouro_nccl_identity.restype = ctypes.c_char_p
assert b"NCCL interface 2.30.7" in ours.ouro_nccl_identity()
assert os.path.samefile(nccl.get_library_path(), sys.argv[1]), nccl.get_library_path()

if rank == 0:
    unique = nccl.get_unique_id()
    with open(place + ".new", "wb") as file:
        file.write(ctypes.string_at(unique.ptr, 128))
    os.rename(place + ".new", place)
while not os.path.exists(place):
    time.sleep(0.01)
raw = bytearray(open(place, "rb").read())
address = ctypes.addressof((ctypes.c_char * 128).from_buffer(raw))
comm = nccl.comm_init_rank(SIZE, address, rank)
assert nccl.comm_count(comm) == SIZE and nccl.comm_user_rank(comm) == rank and nccl.comm_cu_device(comm) == 0
for dtype, code in ((numpy.float32, 7), (numpy.int64, 4), (numpy.float16, 6)):
    x, y = numpy.full(1000, rank + 1, dtype), numpy.zeros(1000, dtype)
    nccl.all_reduce(x.ctypes.data, y.ctypes.data, x.size, code, nccl.RedOp.Sum, comm, 0)
    assert (y == 6).all(), y
    nccl.reduce(x.ctypes.data, y.ctypes.data, x.size, code, nccl.RedOp.Max, 2, comm, 0)
    assert rank != 2 or (y == 3).all()
    nccl.broadcast(x.ctypes.data, y.ctypes.data, x.size, code, 1, comm, 0)
    assert (y == 2).all()
    wide = numpy.zeros(SIZE * x.size, dtype)
    nccl.all_gather(x.ctypes.data, wide.ctypes.data, x.size, code, comm, 0)
    assert (wide.reshape(SIZE, -1)[:, 0] == [1, 2, 3]).all()
    nccl.reduce_scatter(wide.ctypes.data, y.ctypes.data, x.size, code, nccl.RedOp.Sum, comm, 0)
    assert (y == SIZE * (rank + 1)).all()
    back = numpy.zeros_like(wide)
    nccl.allto_all(wide.ctypes.data, back.ctypes.data, x.size, code, comm, 0)
    assert (back == rank + 1).all()
    nccl.group_start()
    nccl.send(x.ctypes.data, x.size, code, (rank + 1) % SIZE, comm, 0)
    nccl.recv(y.ctypes.data, y.size, code, (rank - 1) % SIZE, comm, 0)
    nccl.group_end()
    assert (y == (rank - 1) % SIZE + 1).all()
child = nccl.comm_split(comm, 0, -rank, 0)
assert nccl.comm_user_rank(child) == SIZE - 1 - rank
nccl.comm_destroy(child)
assert int(nccl.comm_get_async_error(comm)) == 0
try:
    nccl.all_reduce(0, 0, 1, 99, 0, comm, 0)
    raise SystemExit("an unknown type went through")
except nccl.NCCLError as e:
    assert "rgument" in str(e), e
nccl.comm_finalize(comm)
nccl.comm_destroy(comm)
