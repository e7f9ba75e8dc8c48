"""Every collective on NumPy arrays, with 4 ranks."""
import needs
import numpy as np

import ouro

job = ouro.init()
world, rank, n = job.world, job.rank, job.world_size
assert (world.size, world.rank, world.ranks) == (n, rank, list(range(n))), world

# All element types that NumPy and ouro share, in place and out of place; the returned array is the one that was passed.
for dtype in "i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8".split():
    x = np.arange(7, dtype=dtype) + np.array(rank, dtype)
    y = np.zeros_like(x)
    assert world.all_reduce(x, y) is y
    expected = n * np.arange(7, dtype=dtype) + np.array(6, dtype)
    assert (y == expected).all() and x[0] == rank, (dtype, y)
    assert world.all_reduce(x) is x and (x == expected).all(), dtype
b = np.array([rank == 1, False])
assert world.all_reduce(b).tolist() == [True, False]

for op, expected in [("sum", 6), ("prod", 0), ("max", 3), ("min", 0), ("avg", 1.5), (ouro.premul(2), 12)]:
    assert world.all_reduce(np.full(3, rank, np.float64), op=op).tolist() == [expected] * 3, op
for op, expected in [("bor", 15), ("band", 0), ("bxor", 15), ("lor", 1), ("land", 1), ("lxor", 0)]:
    assert world.all_reduce(np.full(3, 1 << rank), op=op).tolist() == [expected] * 3, op

x = np.full((2, 3), rank, np.float32)
out = np.zeros_like(x)
world.reduce(x, out, root=2)
assert (out == (6 if rank == 2 else 0)).all()
world.reduce(x, root=1)
assert (x == (6 if rank == 1 else rank)).all()

x = np.full(5, rank)
assert world.broadcast(x, root=3) is x and (x == 3).all()

rows = np.full((n, 2), -1.0)
assert world.all_gather(np.full(2, rank, float), rows) is rows
assert (rows == np.arange(n)[:, None]).all()
rows[:] = -1
rows[rank] = rank
world.all_gather(rows[rank], rows)  # in place
assert (rows == np.arange(n)[:, None]).all()
counts = [1, 0, 3, 2]
uneven = np.zeros(6, np.int32)
world.all_gather(np.full(counts[rank], rank, np.int32), uneven, counts)
assert uneven.tolist() == [0, 2, 2, 2, 3, 3]

x = np.arange(n * 3, dtype=np.float32)
y = np.zeros(3, np.float32)
world.reduce_scatter(x, y)
assert (y == n * x[3 * rank:3 * rank + 3]).all()
y = np.zeros(counts[rank], np.float32)
world.reduce_scatter(x[:6], y, "max", counts)
assert (y == x[sum(counts[:rank]):sum(counts[:rank + 1])]).all()

out = np.zeros((n, 2), np.int64) if rank == 1 else None
world.gather(np.array([rank, 10 * rank]), out, root=1)
assert rank != 1 or out.tolist() == [[r, 10 * r] for r in range(n)]
y = np.zeros(2, np.int64)
world.scatter(out, y, root=1)
assert y.tolist() == [rank, 10 * rank]

x = np.array([10 * rank + j for j in range(n)])
y = np.zeros_like(x)
world.all_to_all(x, y)
assert y.tolist() == [10 * i + rank for i in range(n)]
# Rank r sends j elements to rank j, so each rank gets as many elements from every rank as its own number.
x = np.array([rank] * sum(range(n)), np.int16)
y = np.zeros(n * rank, np.int16)
world.all_to_all(x, y, list(range(n)), [rank] * n)
assert y.tolist() == [i for i in range(n) for _ in range(rank)]
world.barrier()

# Other sources of memory: bytes, array, a foreign object with DLPack only, memory that ranks share.
import array  # noqa: E402

a = array.array("d", [rank])
world.all_reduce(a)
assert a[0] == 6
m = bytearray(4)
world.broadcast(bytes([1, 2, 3, 4]) if rank == 0 else m)
assert rank == 0 or m == bytes([1, 2, 3, 4])


class OnlyDlpack:
    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


x = np.full(4, rank, np.float32)
world.all_reduce(OnlyDlpack(x))
assert (x == 6).all()

shared = job.alloc((3, 4), "float64")
s = np.asarray(shared)
assert s.shape == (3, 4) and s.dtype == np.float64 and (s == 0).all()
s[:] = rank
world.all_reduce(shared)
assert (s == 6).all() and (np.from_dlpack(shared) == 6).all()
of_all = [np.asarray(x) for x in world.alloc_shared((2,), "int32")]
of_all[rank][:] = rank
world.barrier()
assert [x[1] for x in of_all] == list(range(n))

# Groups: by split, by ranks, with canonical numerics.
half = world.split(rank % 2, key=-rank)
assert half.size == 2 and half.rank == (1 if rank < 2 else 0)
assert half.all_reduce(np.array([rank]))[0] == (2 if rank % 2 == 0 else 4)
nobody = world.split(0 if rank == 0 else -1)
assert nobody.valid == (rank == 0)
if rank in (1, 3):
    pair = job.group([3, 1], "pair", numerics="canonical")
    assert pair.rank == (0 if rank == 3 else 1) and pair.from_global(1) == 1 and pair.from_global(0) is None
    assert pair.all_reduce(np.ones(3))[0] == 2
assert "ring" in world.explain("all_reduce", 1 << 20) or "over" in world.explain("all_reduce", 1 << 20)

job.close()
job.close()
assert not job.active
