# libnccl.so.2 used as in the ctypes wrappers of vLLM and sglang: loaded by path, ids and structures passed by value,
# one process per rank. Usage: client_ctypes.py LIBRARY
import ctypes
import multiprocessing
import sys


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def load(path):
    c = ctypes.CDLL(path)
    p, i, s = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    c.ncclGetErrorString.restype = ctypes.c_char_p
    c.ncclGetUniqueId.argtypes = [ctypes.POINTER(UniqueId)]
    c.ncclCommInitRank.argtypes = [ctypes.POINTER(p), i, UniqueId, i]
    c.ncclAllReduce.argtypes = [p, p, s, i, i, p, p]
    c.ncclReduce.argtypes = [p, p, s, i, i, i, p, p]
    c.ncclAllGather.argtypes = [p, p, s, i, p, p]
    c.ncclReduceScatter.argtypes = [p, p, s, i, i, p, p]
    c.ncclSend.argtypes = c.ncclRecv.argtypes = [p, s, i, i, p, p]
    c.ncclBroadcast.argtypes = [p, p, s, i, i, p, p]
    c.ncclCommWindowRegister.argtypes = [p, p, s, ctypes.POINTER(p), i]
    c.ncclCommWindowDeregister.argtypes = [p, p]
    c.ncclCommDestroy.argtypes = c.ncclCommResume.argtypes = [p]
    c.ncclCommSuspend.argtypes = [p, i]
    return c


def rank_main(path, rank, size, raw):
    c = load(path)

    def ok(result):
        assert result == 0, c.ncclGetErrorString(result)

    version = ctypes.c_int()
    ok(c.ncclGetVersion(ctypes.byref(version)))
    digits = str(version.value)
    assert len(digits) == 5 and digits[0] == "2", digits
    unique = UniqueId.from_buffer_copy(raw)
    comm = ctypes.c_void_p()
    ok(c.ncclCommInitRank(ctypes.byref(comm), size, unique, rank))
    floats = ctypes.c_float * 8
    x, y = floats(*[rank + 1] * 8), floats()
    total = size * (size + 1) / 2
    ok(c.ncclAllReduce(x, y, 8, 7, 0, comm, None))
    assert list(y) == [total] * 8, list(y)
    ok(c.ncclReduce(x, y, 8, 7, 2, size - 1, comm, None))
    assert rank != size - 1 or list(y) == [size] * 8, list(y)
    wide = (ctypes.c_float * (8 * size))()
    ok(c.ncclAllGather(x, wide, 8, 7, comm, None))
    assert list(wide) == [r + 1 for r in range(size) for _ in range(8)]
    ok(c.ncclReduceScatter(wide, y, 8, 7, 0, comm, None))
    assert list(y) == [size * (rank + 1)] * 8, list(y)
    ok(c.ncclGroupStart())
    ok(c.ncclSend(x, 8, 7, (rank + 1) % size, comm, None))
    ok(c.ncclRecv(y, 8, 7, (rank - 1) % size, comm, None))
    ok(c.ncclGroupEnd())
    assert list(y) == [(rank - 1) % size + 1] * 8
    ok(c.ncclBroadcast(x, x, 8, 7, 0, comm, None))
    assert list(x) == [1] * 8
    # Registered memory, and releasing memory temporarily, as vLLM does between batches.
    memory, window = ctypes.c_void_p(), ctypes.c_void_p()
    ok(c.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(8192)))
    ok(c.ncclCommWindowRegister(comm, memory, 8192, ctypes.byref(window), 1))
    ok(c.ncclAllReduce(memory, memory, 2048, 7, 0, comm, None))
    ok(c.ncclCommWindowDeregister(comm, window))
    ok(c.ncclMemFree(memory))
    ok(c.ncclCommSuspend(comm, 1))
    assert c.ncclAllReduce(x, y, 8, 7, 0, comm, None) == 5
    ok(c.ncclCommResume(comm))
    ok(c.ncclAllReduce(x, y, 8, 7, 0, comm, None))
    assert list(y) == [size] * 8, list(y)
    ok(c.ncclCommDestroy(comm))


def main():
    path = sys.argv[1]
    for size in (1, 2, 3):
        unique = UniqueId()
        assert load(path).ncclGetUniqueId(ctypes.byref(unique)) == 0
        ranks = [multiprocessing.get_context("spawn").Process(target=rank_main, args=(path, r, size, bytes(unique)))
                 for r in range(size)]
        for r in ranks:
            r.start()
        for r in ranks:
            r.join(60)
        assert [r.exitcode for r in ranks] == [0] * size, [r.exitcode for r in ranks]
    print("1, 2 and 3 processes")


if __name__ == "__main__":
    main()
