# A rank under `ouro-run --nccl`, which loads "libnccl.so.2" as any program does, and gets ouro's. No argument.
import ctypes
import os
import tempfile
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


nccl = ctypes.CDLL("libnccl.so.2")
nccl.ouro_nccl_identity.restype = ctypes.c_char_p
assert nccl.ouro_nccl_identity().startswith(b"ouro "), nccl.ouro_nccl_identity()
# Only in the children: the launcher has not loaded it.
assert "libnccl" not in open(f"/proc/{os.getppid()}/maps").read()

unique = UniqueId()
place = os.path.join(tempfile.gettempdir(), f"ouro-nccl-{os.environ['OURO_JOB_ID']}")
if rank == 0:
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
    with open(place + ".new", "wb") as file:
        file.write(bytes(unique))
    os.rename(place + ".new", place)
for _ in range(3000):
    if os.path.exists(place):
        break
    time.sleep(0.01)
unique = UniqueId.from_buffer_copy(open(place, "rb").read())
comm = ctypes.c_void_p()
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
assert nccl.ncclCommInitRank(ctypes.byref(comm), size, unique, rank) == 0
if rank == 0:
    os.unlink(place)
x = ctypes.c_int(rank + 1)
assert nccl.ncclAllReduce(ctypes.byref(x), ctypes.byref(x), ctypes.c_size_t(1), 2, 0, comm, None) == 0
assert x.value == size * (size + 1) // 2, x.value
assert nccl.ncclCommDestroy(comm) == 0
print("sum", x.value)
