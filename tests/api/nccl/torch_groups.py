# PyTorch's process groups over NCCL, unmodified, on emulated devices: collectives and messages give the same results as
# gloo. Usage: torch_groups.py RUNTIME DRIVER LIBRARY RANKS DEVICES [VARIABLE=VALUE]... EAGER=1 creates the communicator
# at once. Data is created on the host and copied, because CUDA kernels cannot run.
import re
import sys

import torch_ranks

in_rank = torch_ranks.arguments()
if not in_rank:
    ranks, devices = int(sys.argv[4]), int(sys.argv[5])
    variables = torch_ranks.emulated(sys.argv[1:4], devices) | dict(v.split("=") for v in sys.argv[6:])
    texts = torch_ranks.run(__file__, ranks, **variables)
    print("ranks compared", *(re.findall(r"(\d+) tensors are equal", text)[0] for text in texts), "tensors")
    sys.exit()

import functools
import operator
import os

import torch
import torch.distributed as dist

rank, size, store, _ = in_rank
carrier = torch_ranks.device_backend()
device = torch.device("cuda", rank % torch.cuda.device_count())
torch.cuda.set_device(device)
dist.init_process_group(f"cpu:gloo,cuda:{carrier}", init_method=f"file://{store}/store", rank=rank, world_size=size,
                        **({"device_id": device} if "EAGER" in os.environ else {}))
count, compared = 1003, 0
OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MOVED = [torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64]


def data(dtype, seed, n=count):
    """A tensor of small numbers, whose sums and products are exact in every type."""
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (n,), generator=g).to(dtype)
    x = torch.randint(0 if dtype == torch.uint8 else -2, 4, (n,), generator=g).to(torch.float32)
    return torch.complex(x, -x) if dtype.is_complex else x.to(dtype)


def on_device(x):
    return [on_device(e) for e in x] if isinstance(x, list) else x.to(device)


def same(name, mine, expected):
    """Compares `mine`, on the device, with `expected`, on the host, bit by bit."""
    global compared
    if isinstance(mine, list):
        for a, b in zip(mine, expected, strict=True):
            same(name, a, b)
        return
    assert mine.device == device, name
    a, b = mine.cpu().contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    assert torch.equal(a, b), f"{name}: {mine.cpu()} is not {expected}"
    compared += 1


def both(name, f, *tensors):
    """Runs `f` on the host, with gloo, and on the device, and compares. `f` returns what is to be compared, or works
    in place."""
    theirs = [t if not isinstance(t, torch.Tensor) else t.clone() for t in tensors]
    mine = [on_device(t) for t in tensors]
    expected, given = f(*theirs), f(*mine)
    same(name, given if given is not None else mine, expected if expected is not None else theirs)


def reduced(dtype, op, seeds):
    """The result of reducing `data(dtype, seed)` over the seeds, for types and reductions that gloo lacks."""
    all_of = torch.stack([data(dtype, s).to(torch.float64 if dtype.is_floating_point else torch.int64) for s in seeds])
    result = {"sum": all_of.sum, "prod": all_of.prod, "min": all_of.amin, "max": all_of.amax}[op](0)
    return result.to(dtype)


def reductions():
    for dtype in INTEGERS + FLOATS:
        for name, op in OPS.items():
            x = data(dtype, rank).to(device)
            dist.all_reduce(x, op)
            same(f"all_reduce {dtype} {name}", x, reduced(dtype, name, range(size)))
            if dtype != torch.bfloat16:
                both(f"all_reduce {dtype} {name} as gloo", lambda t: dist.all_reduce(t, op), data(dtype, rank))
            root = size - 1
            x = data(dtype, rank).to(device)
            dist.reduce(x, root, op)
            if rank == root:
                same(f"reduce {dtype} {name}", x, reduced(dtype, name, range(size)))
            x, y = torch.cat([data(dtype, rank * size + r) for r in range(size)]).to(device), torch.empty(count, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(y, x, op)
            wanted = reduced(dtype, name, [r * size + rank for r in range(size)])
            same(f"reduce_scatter_tensor {dtype} {name}", y, wanted)
            parts = on_device([data(dtype, rank * size + r) for r in range(size)])
            y = torch.empty(count, dtype=dtype, device=device)
            dist.reduce_scatter(y, parts, op)
            same(f"reduce_scatter {dtype} {name}", y, wanted)
    for dtype in FLOATS:  # the average, which is exact because all inputs are multiples of the number of ranks
        x = (data(dtype, rank) * size).to(device)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        same(f"all_reduce {dtype} avg", x, reduced(dtype, "sum", range(size)))
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = data(dtype, rank).to(device)
        dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
        same(f"all_reduce {dtype} premul_sum", x, reduced(dtype, "sum", range(size)) * 2)
    x = data(torch.bool, rank).to(device)  # gloo adds their bytes
    dist.all_reduce(x)
    same("all_reduce of bools", x, torch.stack([data(torch.bool, r) for r in range(size)]).any(0))
    both("all_reduce of complex numbers", dist.all_reduce, data(torch.complex64, rank))
    for dtype, op in ((torch.int32, dist.ReduceOp.BAND), (torch.int16, dist.ReduceOp.SUM)):  # NCCL has neither
        if carrier == "ouro":
            x = torch.full((4,), 7 << rank, dtype=dtype).to(device)
            dist.all_reduce(x, op)
            parts = [7 << r for r in range(size)]
            wanted = sum(parts) if op == dist.ReduceOp.SUM else functools.reduce(operator.and_, parts)
            same(f"all_reduce {dtype} {op}", x, torch.full((4,), wanted, dtype=dtype))
            continue
        try:
            dist.all_reduce(torch.ones(4, dtype=dtype).to(device), op)
            raise SystemExit(f"{dtype} {op} went through")
        except (TypeError, ValueError, RuntimeError) as e:
            assert "NCCL" in str(e) or "Unsupported" in str(e) or "not supported" in str(e), e


def movements():
    for dtype in INTEGERS + FLOATS + MOVED:
        for root in {0, size - 1}:
            x = data(dtype, rank).to(device)
            dist.broadcast(x, root)
            same(f"broadcast {dtype}", x, data(dtype, root))
        y = torch.empty(count * size, dtype=dtype, device=device)
        dist.all_gather_into_tensor(y, data(dtype, rank).to(device))
        same(f"all_gather_into_tensor {dtype}", y, torch.cat([data(dtype, r) for r in range(size)]))
        y = torch.empty(count * size, dtype=dtype, device=device)
        dist.all_to_all_single(y, torch.cat([data(dtype, rank * size + r) for r in range(size)]).to(device))
        same(f"all_to_all_single {dtype}", y, torch.cat([data(dtype, r * size + rank) for r in range(size)]))

    def empty_as(x, *counts):
        return [torch.empty(n, dtype=x.dtype, device=x.device) for n in counts]

    def all_gather(x, *counts):
        out = empty_as(x, *counts)
        dist.all_gather(out, x)
        return out

    x = data(torch.float32, rank)
    both("all_gather", lambda t: all_gather(t, *[count] * size), x)
    uneven = [7 * r + 1 for r in range(size)]
    mine = on_device(data(torch.float32, rank, uneven[rank]))
    same("all_gather of uneven parts", all_gather(mine, *uneven), [data(torch.float32, r, n) for r, n in enumerate(uneven)])
    out = torch.empty(uneven[rank], device=device)
    dist.reduce_scatter(out, on_device([data(torch.float32, rank, n) for n in uneven]))
    same("reduce_scatter of uneven parts", out, sum(data(torch.float32, r, uneven[rank]) for r in range(size)))

    def gather(t):
        out = empty_as(t, *[count] * size) if rank == 0 else None
        dist.gather(t, out, 0)
        return out or []

    def scatter(t):
        out = torch.empty_like(t)
        dist.scatter(out, [t + r for r in range(size)] if rank == 0 and t.device.type == "cpu" else
                     on_device([t.cpu() + r for r in range(size)]) if rank == 0 else None, 0)
        return out

    both("gather", gather, x)
    both("scatter", scatter, x)
    # Uneven, with empty parts: rank r sends (r + to) mod 3 elements.
    send, receive = [(rank + r) % 3 for r in range(size)], [(r + rank) % 3 for r in range(size)]
    x = torch.arange(sum(send), dtype=torch.int64) + 100 * rank

    def all_to_all_single(t):
        out = torch.empty(sum(receive), dtype=t.dtype, device=t.device)
        dist.all_to_all_single(out, t, receive, send)
        return out

    both("all_to_all_single of uneven parts", all_to_all_single, x)
    parts, out = on_device(list(x.split(send))), empty_as(x.to(device), *receive)
    dist.all_to_all(out, parts)
    expected = all_to_all_single(x).split(receive)
    same("all_to_all of uneven parts", out, list(expected))


def messages():
    right, left = (rank + 1) % size, (rank - 1) % size

    def ring(t):
        out = torch.empty_like(t)
        for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, right), dist.P2POp(dist.irecv, out, left)]):
            w.wait()
        return out

    x = data(torch.float32, rank)
    if size > 1:
        both("batch_isend_irecv", ring, x)
        both("batch_isend_irecv of what does not wait in buffers", ring, torch.arange(3_000_000, dtype=torch.int32) + rank)
        # One after the other, each over a communicator of two ranks.
        y = x.to(device)
        if rank == 0:
            dist.send(y, 1)
        elif rank == 1:
            dist.recv(y, 0)
            same("recv", y, data(torch.float32, 0))
        if carrier == "ouro" and rank == 0:  # from any source, which NCCL lacks; reports the source
            seen = set()
            for _ in range(size - 1):
                y = torch.empty(4, device=device)
                seen.add(source := dist.recv(y, tag=5))
                same("from any source", y, torch.full((4,), float(source)))
            assert seen == set(range(1, size)), seen
        elif carrier == "ouro":
            dist.send(torch.full((4,), float(rank)).to(device), 0, tag=5)
    else:
        same("batch_isend_irecv with itself", ring(x.to(device)), x)
    if size > 2:  # all ranks with all, including themselves
        outs, operations = [torch.empty(count, device=device) for _ in range(size)], []
        for peer in range(size):
            operations += [dist.P2POp(dist.isend, data(torch.float32, rank * size + peer).to(device), peer),
                           dist.P2POp(dist.irecv, outs[peer], peer)]
        for w in dist.batch_isend_irecv(operations):
            w.wait()
        same("batch_isend_irecv with all", outs, [data(torch.float32, peer * size + rank) for peer in range(size)])


def coalescing():
    xs = on_device([data(torch.float32, rank * 10 + i, 10 * i + 1) for i in range(4)])
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    same("coalesced all_reduce", xs, [sum(data(torch.float32, r * 10 + i, 10 * i + 1) for r in range(size)) for i in range(4)])
    outs = [torch.empty(size * 5, device=device) for _ in range(3)]
    with dist._coalescing_manager(device=device):
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, data(torch.float32, rank + 100 * i, 5).to(device))
    same("coalesced all_gather", outs, [torch.cat([data(torch.float32, r + 100 * i, 5) for r in range(size)]) for i in range(3)])
    outs = [torch.empty(5, device=device) for _ in range(3)]
    with dist._coalescing_manager(device=device):
        for i, out in enumerate(outs):
            dist.reduce_scatter_tensor(out, data(torch.float32, rank + 100 * i, size * 5).to(device))
    same("coalesced reduce_scatter", outs,
         [sum(data(torch.float32, r + 100 * i, size * 5) for r in range(size)).view(size, 5)[rank] for i in range(3)])


def streams():
    """Order across streams: one stream copies, a collective on another uses the copy, and a third copies the result
    back."""
    side, third = torch.cuda.Stream(device), torch.cuda.Stream(device)
    for i in range(20):
        source = torch.full((100_000,), float(rank + i)).pin_memory()
        with torch.cuda.stream(side):
            x = torch.empty(100_000, device=device)
            x.copy_(source, non_blocking=True)
            work = dist.all_reduce(x, async_op=True)
            x.record_stream(third)
        with torch.cuda.stream(third):
            work.wait()
            back = torch.empty(100_000).pin_memory()
            back.copy_(x, non_blocking=True)
            event = third.record_event()
        event.synchronize()
        assert (back == sum(r + i for r in range(size))).all(), (i, back)


def futures():
    """What is chained to a future runs in a stream of its own, after the operation; a stream that waits for the
    future is ordered too."""
    side, third = torch.cuda.Stream(device), torch.cuda.Stream(device)
    for i in range(20):
        source, copied = torch.full((100_000,), float(rank + i)).pin_memory(), torch.empty(100_000, device=device)
        with torch.cuda.stream(side):
            x = torch.empty(100_000, device=device)
            x.copy_(source, non_blocking=True)
            future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: copied.copy_(f.value()[0]))
        with torch.cuda.stream(third):
            future.wait()
            back = torch.empty(100_000).pin_memory()
            back.copy_(copied, non_blocking=True)
        third.synchronize()
        assert (back == sum(r + i for r in range(size))).all(), (i, back)


def strided():
    """NCCL refuses these. Copies of columns would need kernels, so the tensors have one column in two."""
    if carrier == "nccl" or size == 1:
        return
    import torch_arithmetic

    kept = torch_arithmetic.install()
    wide = torch.zeros(50, 2).to(device)
    column = wide[:, rank % 2]
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, (data(torch.float32, rank, 100).view(50, 2).to(device)[:, 1]), (rank + 1) % size),
                                     dist.P2POp(dist.irecv, column, (rank - 1) % size)]):
        w.wait()
    same("receive into a column", column, data(torch.float32, (rank - 1) % size, 100).view(50, 2)[:, 1])
    dist.all_reduce(column)
    same("all_reduce of a column", column, sum(data(torch.float32, r, 100).view(50, 2)[:, 1] for r in range(size)))
    del kept


def groups():
    evens = list(range(0, size, 2))
    some = dist.new_group(evens)
    if rank in evens:
        x = data(torch.float32, rank).to(device)
        dist.all_reduce(x, group=some)
        same("all_reduce in a group", x, reduced(torch.float32, "sum", evens))
    if size > 1 and "EAGER" in os.environ:
        halves = [list(range(size // 2)), list(range(size // 2, size))]
        half = dist.split_group(split_ranks=halves)
        x = data(torch.float32, rank).to(device)
        dist.all_reduce(x, group=half)
        same("all_reduce after a split", x, reduced(torch.float32, "sum", halves[rank >= size // 2]))
    mesh = dist.init_device_mesh("cuda", (size // 2, 2) if size > 1 else (1, 1), mesh_dim_names=("a", "b"))
    x = data(torch.float32, rank).to(device)
    dist.all_reduce(x, group=mesh["b"].get_group())
    same("all_reduce in a mesh", x, reduced(torch.float32, "sum", [rank // 2 * 2 + i for i in range(min(size, 2))]))


def pools():
    """Tensors in memory of ncclMemAlloc, which is registered; the older group requests multicast memory, which does
    not exist here."""
    if os.environ.get("TORCH_DIST_USE_NCCL2") == "0" or carrier != "nccl":
        return
    backend = dist.group.WORLD._get_backend(device)
    try:
        pool = torch.cuda.MemPool(backend.mem_allocator)
    except RuntimeError as e:  # before 2.15, of a device without multicast objects
        assert "mem allocator is not supported" in str(e), e
        return
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(100_000, device=device)
    x.copy_(data(torch.float32, rank, 100_000))
    backend.register_mem_pool(pool)
    dist.all_reduce(x)
    same("all_reduce in a pool", x, sum(data(torch.float32, r, 100_000) for r in range(size)))
    backend.deregister_mem_pool(pool)


def one_process():
    """The older interface, for one process that drives all devices."""
    from torch.cuda import nccl

    places = range(torch.cuda.device_count())
    if size > 1 or len(places) < 2 or carrier != "nccl":
        return
    xs = [data(torch.float32, i).to(f"cuda:{i}") for i in places]
    nccl.all_reduce(xs)
    total = reduced(torch.float32, "sum", places)
    outs = [torch.empty(count * len(places), device=x.device) for x in xs]
    nccl.all_gather(xs, outs)
    nccl.reduce(xs, root=0)
    same("torch.cuda.nccl", [outs[0], xs[0]], [total.repeat(len(places)), total * len(places)])


for part in (reductions, movements, messages, coalescing, streams, futures, groups, pools, one_process, strided):
    part()
    dist.barrier(device_ids=[device.index])
dist.destroy_process_group()
print(f"{compared} tensors are equal")
