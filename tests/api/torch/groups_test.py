# Every operation of torch.distributed over ouro gives the same result as over gloo, bit by bit if gloo has
# it. Usage: groups_test.py RANKS, an even number
import datetime
import os
import re
import socket
import sys

import places

if not places.arguments():
    texts = places.run(__file__, int(sys.argv[1]))
    print(*(re.findall(r"\d+ tensors are equal", text)[0] for text in texts), sep="\n")
    sys.exit()

import torch
import torch.distributed as dist

from ouro.torch import rendezvous

rank, size, _ = places.init("ouro")
gloo = dist.new_group(backend="gloo")
count, compared = 103, 0
OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.float32, torch.float64]
MOVED = [torch.int16, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16]


def data(dtype, seed, n=count):
    """A tensor of small numbers, whose sums and products are exact in every type."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 4, (n,), generator=g).to(torch.float32)
    return torch.complex(x, -x) if dtype.is_complex else x.to(dtype)


def same(name, mine, theirs):
    global compared
    if isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            same(name, a, b)
        return
    a, b = (t.contiguous().view(-1).view(torch.uint8) for t in (mine, theirs))
    assert mine.shape == theirs.shape and torch.equal(a, b), f"{name}: {mine} is not {theirs}"
    compared += 1


def both(name, f, *tensors):
    """Runs `f(group, tensor...)` over both and compares. `f` returns what is to be compared, or works in
    place."""
    results = []
    for group in (dist.group.WORLD, gloo):
        own = [t.clone() for t in tensors]
        given = f(group, *own)
        results.append(own if given is None else given)
    same(name, *results)


def reductions():
    for dtype in INTEGERS + FLOATS:
        for name, op in OPS.items():
            both(f"all_reduce {dtype} {name}", lambda g, x: dist.all_reduce(x, op, group=g), data(dtype, rank))

            def reduce(g, x):
                dist.reduce(x, size - 1, op, group=g)
                return x if rank == size - 1 else x * 0
            both(f"reduce {dtype} {name}", reduce, data(dtype, rank))

            def reduce_scatter(g, x):
                out, again = torch.empty(count, dtype=dtype), torch.empty(count, dtype=dtype)
                dist.reduce_scatter_tensor(out, x, op, group=g)
                if g is gloo:  # gloo lacks the list in some versions of PyTorch
                    return [out, out]
                dist.reduce_scatter(again, list(x.chunk(size)), op, group=g)
                return [out, again]
            both(f"reduce_scatter {dtype} {name}", reduce_scatter, data(dtype, rank, count * size))
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        both(f"all_reduce {op}", lambda g, x: dist.all_reduce(x, op, group=g), data(torch.int32, rank))
    both("all_reduce of complex numbers", lambda g, x: dist.all_reduce(x, group=g), data(torch.complex64, rank))
    # What gloo lacks: int16, bfloat16 with all reductions, averages, booleans as booleans.
    for dtype in (torch.int16, torch.bfloat16):
        x = data(dtype, rank)
        dist.all_reduce(x)
        same(f"all_reduce {dtype}", x, sum(data(torch.float32, r) for r in range(size)).to(dtype))
    x = data(torch.float32, rank) * size
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same("average", x, sum(data(torch.float32, r) for r in range(size)))
    x = data(torch.float32, rank)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    same("premul_sum", x, 2 * sum(data(torch.float32, r) for r in range(size)))
    x = data(torch.bool, rank)
    dist.all_reduce(x)
    same("booleans", x, torch.stack([data(torch.bool, r) for r in range(size)]).any(0))
    sparse()
    # Tensors that are not contiguous.
    for g in (dist.group.WORLD,):
        x = data(torch.float32, rank, 12).view(3, 4).t()
        dist.all_reduce(x, group=g)
        same("transposed", x, sum(data(torch.float32, r, 12) for r in range(size)).view(3, 4).t())
    try:
        dist.all_reduce(data(torch.complex64, rank), dist.ReduceOp.MAX)
        raise SystemExit("max of complex numbers went through")
    except (ValueError, RuntimeError) as e:
        assert "complex" in str(e), e


def sparse():
    """Entries that some ranks share, none on rank 1, values that are rows, and no entries at all."""
    def entries(r, dtype, columns):
        places = torch.tensor([[r % 3, 2, 5, 5]] if r != 1 else [[]], dtype=torch.int64).view(1, -1)
        return torch.sparse_coo_tensor(places, data(torch.float32, r, places.numel() * columns).view(-1, columns).to(dtype), (6, columns))

    def sum_up(g, x):
        dist.all_reduce(x, group=g)
        return x.to_dense()

    for dtype in (torch.float32, torch.int64):
        for columns in (1, 3):
            both("all_reduce of sparse tensors", sum_up, entries(rank, dtype, columns))
    empty = torch.sparse_coo_tensor(size=(4, 4))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    for wrong, op, text in ((entries(0, torch.float32, 1 + rank % 2), dist.ReduceOp.SUM, "of sparse tensors"),
                            (entries(0, torch.float32, 1), dist.ReduceOp.MAX, "nothing else")):
        try:
            dist.all_reduce(wrong, op)
            raise SystemExit("a wrong sum of sparse tensors went through")
        except (ValueError, dist.DistBackendError) as e:
            assert text in str(e), e


def movements():
    for dtype in INTEGERS + FLOATS + MOVED:
        group = gloo if dtype in INTEGERS + FLOATS else dist.group.WORLD
        for root in {0, size - 1}:
            x = data(dtype, rank)
            dist.broadcast(x, root)
            same(f"broadcast {dtype}", x, data(dtype, root))
        y = torch.empty(count * size, dtype=dtype)
        dist.all_gather_into_tensor(y, data(dtype, rank))
        same(f"all_gather_into_tensor {dtype}", y, torch.cat([data(dtype, r) for r in range(size)]))
        y = torch.empty(count * size, dtype=dtype)
        dist.all_to_all_single(y, torch.cat([data(dtype, rank * size + r) for r in range(size)]))
        same(f"all_to_all_single {dtype}", y, torch.cat([data(dtype, r * size + rank) for r in range(size)]))
        dist.barrier(group=group)

    def gathers(g, x):
        outs, first = [torch.empty_like(x) for _ in range(size)], [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(outs, x, group=g)
        dist.gather(x, first if rank == 1 % size else None, dst=1 % size, group=g)
        out = torch.empty_like(x)
        dist.scatter(out, [x + r for r in range(size)] if rank == 0 else None, src=0, group=g)
        return outs + (first if rank == 1 % size else []) + [out]

    both("gathers and scatter", gathers, data(torch.float32, rank))
    both("gathers and scatter of a matrix", gathers, data(torch.float32, rank, 12).view(3, 4))

    def coalesced(g, *xs):
        outs = [[torch.empty_like(x) for x in xs] for _ in range(size)]
        dist.all_gather_coalesced(outs, list(xs), group=g)
        return outs

    both("all_gather_coalesced", coalesced, data(torch.float32, rank), data(torch.float32, rank + 50, 7), data(torch.float32, rank + 60, 1))
    uneven = [7 * r + 1 for r in range(size)]
    outs = [torch.empty(n) for n in uneven]
    dist.all_gather(outs, data(torch.float32, rank, uneven[rank]))
    same("all_gather of uneven parts", outs, [data(torch.float32, r, n) for r, n in enumerate(uneven)])
    out = torch.empty(uneven[rank])
    dist.reduce_scatter(out, [data(torch.float32, rank, n) for n in uneven])
    same("reduce_scatter of uneven parts", out, sum(data(torch.float32, r, uneven[rank]) for r in range(size)))
    # Rank r sends (r + to) mod 3 rows, possibly none.
    send = receive = [(rank + r) % 3 for r in range(size)]

    def uneven_all_to_all(g, x):
        out = torch.empty(sum(receive), 2, dtype=x.dtype)
        dist.all_to_all_single(out, x, receive, send, group=g)
        return out

    x = torch.arange(2 * sum(send), dtype=torch.int64).view(-1, 2) + 100 * rank
    both("all_to_all_single of uneven parts", uneven_all_to_all, x)
    outs = [torch.empty(n, 2, dtype=x.dtype) for n in receive]
    dist.all_to_all(outs, list(x.split(send)))
    same("all_to_all of uneven parts", outs, list(uneven_all_to_all(gloo, x).split(receive)))


def parts_in_a_row():
    """Lists whose tensors are adjacent parts of one memory, except an empty one, which is elsewhere in
    it."""
    others = [r for r in range(size) if r != rank]

    def arena(value):
        """Memory for 4 elements of each other rank and none of this one, followed by 20 elements that
        must not be used."""
        whole = torch.full((4 * (size - 1) + 20,), float(value))
        pieces = dict(zip(others, whole[:4 * (size - 1)].split(4)))
        return whole, [pieces.get(r, whole[4 * (size - 1):][:0]) for r in range(size)]

    def sent(source, to):
        return torch.arange(4.0) + 100 * source + 10 * to

    (whole, outs), (_, ins) = arena(-1), arena(-2)
    for r in others:
        ins[r].copy_(sent(rank, r))
    dist.all_to_all(outs, ins)  # the empty one is the first of rank 0, and the last of the last rank
    same("all_to_all of parts in a row", whole[:4 * (size - 1)], torch.cat([sent(r, rank) for r in others]))
    same("what is behind them", whole[4 * (size - 1):], torch.full((20,), -1.0))


def views_of_each_other():
    """Inputs that are parts of the outputs, or share memory with them in another way, count as they were before the call."""
    other = (rank + 1) % size

    def gather_of_others(g, x):
        whole = x.expand(size, count).clone()
        whole[other] += 1
        dist.all_gather(list(whole.unbind(0)), whole[other], group=g)
        single = x.repeat(size)
        single[other * count:][:count] += 1
        dist.all_gather_into_tensor(single, single[other * count:][:count], group=g)
        rooted = x.expand(size, count).clone()
        rooted[other] += 1
        dist.gather(rooted[other], list(rooted.unbind(0)) if rank == 0 else None, dst=0, group=g)
        return [whole, single, *([rooted] if rank == 0 else [])]

    both("gathers of others' places", gather_of_others, data(torch.float32, rank))
    exchanged = data(torch.float32, rank).repeat(size) + torch.arange(float(size * count))  # gloo overwrites what it has yet to send
    dist.all_to_all_single(exchanged, exchanged)
    mine = torch.arange(float(size * count))[rank * count:][:count]
    same("all_to_all in place", exchanged, torch.cat([data(torch.float32, r) + mine for r in range(size)]))
    reduced = data(torch.float32, rank).repeat(size + 1)
    dist.reduce_scatter_tensor(reduced[count // 2:][:count], reduced[:size * count])
    same("reduce_scatter within", reduced[count // 2:][:count], sum(data(torch.float32, r) for r in range(size)))


def messages():
    right, left = (rank + 1) % size, (rank - 1) % size
    for n in (1, 300_000):  # receives come first: they must not delay the sends
        out = torch.empty(n)
        works = [dist.irecv(out, left, tag=3), dist.isend(data(torch.float32, rank, n), right, tag=3)]
        for w in works:
            w.wait()
        same("ring", out, data(torch.float32, left, n))
        out = torch.empty(n)
        for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, out, left), dist.P2POp(dist.isend, data(torch.float32, rank, n), right)]):
            w.wait()
        same("batch_isend_irecv", out, data(torch.float32, left, n))
    # All ranks send small messages first, in the caller.
    dist.send(data(torch.float32, rank, 5), right)
    out = torch.empty(5)
    assert dist.recv(out, left) == left
    same("all send first", out, data(torch.float32, left, 5))
    if rank == 0:  # from any source, which is reported
        seen = set()
        for _ in range(size - 1):
            x = torch.empty(4)
            seen.add(source := dist.recv(x))
            same("from any source", x, torch.full((4,), float(source)))
        w = dist.irecv(y := torch.empty(4), tag=9) if size > 1 else None
        if w:
            w.wait()
            assert w._source_rank() == 1 and (y == 7).all()
        assert seen == set(range(1, size)), seen
    else:
        dist.send(torch.full((4,), float(rank)), 0)
        if rank == 1:
            dist.send(torch.full((4,), 7.0), 0, tag=9)


def coalescing():
    xs = [data(torch.float32, rank * 10 + i, 10 * i + 1) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    same("coalesced all_reduce", xs, [sum(data(torch.float32, r * 10 + i, 10 * i + 1) for r in range(size)) for i in range(4)])
    for device in (None, torch.device("cpu")):
        outs = [torch.empty(size * 5) for _ in range(3)]
        with dist._coalescing_manager(device=device):
            for i, out in enumerate(outs):
                dist.all_gather_into_tensor(out, data(torch.float32, rank + 100 * i, 5))
        same("coalesced all_gather", outs, [torch.cat([data(torch.float32, r + 100 * i, 5) for r in range(size)]) for i in range(3)])
        outs = [torch.empty(5) for _ in range(3)]
        with dist._coalescing_manager(device=device):
            for i, out in enumerate(outs):
                dist.reduce_scatter_tensor(out, data(torch.float32, rank + 100 * i, size * 5))
        same("coalesced reduce_scatter", outs,
             [sum(data(torch.float32, r + 100 * i, size * 5) for r in range(size)).view(size, 5)[rank] for i in range(3)])


def works():
    x = data(torch.float32, rank)
    w = dist.all_reduce(x, async_op=True)
    twice = w.get_future().then(lambda f: 2 * f.value()[0])
    same("future", twice.wait(), 2 * sum(data(torch.float32, r) for r in range(size)))
    w.wait()
    assert w.is_completed() and w.is_success()
    ys = [torch.full((3,), float(i)) for i in range(50)]
    works = [dist.all_reduce(y, async_op=True) for y in ys]
    z = torch.ones(1)
    dist.all_reduce(z)  # after those
    assert z == size and all(w.is_completed() for w in works)
    same("in order", ys, [torch.full((3,), float(i * size)) for i in range(50)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        dist.all_reduce(z)
        dist.broadcast(z, 0, async_op=True).wait()
    assert {"ouro:all_reduce", "ouro:broadcast"} <= {e.key for e in p.key_averages()}, {e.key for e in p.key_averages()}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as p:
        w = dist.irecv(z, (rank - 1) % size)
        dist.send(z, (rank + 1) % size)
        w.wait()
        dist.all_gather_coalesced([[torch.ones(2), torch.ones(3)] for _ in range(size)], [torch.ones(2), torch.ones(3)])
    shapes = sorted((e.name, str(e.input_shapes)) for e in p.events() if e.name.startswith("ouro:"))
    assert shapes == [("ouro:all_gather", "[[2], [3]]"), ("ouro:recv", "[[1]]"), ("ouro:send", "[[1]]")], shapes
    if torch.__version__ >= "2.15":  # before that, PyTorch had them for its own backends only
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.barrier()
        assert dist.group.WORLD._get_sequence_number_for_group() == before + 1


def objects():
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    all_of, first = [None] * size, [mine if rank == 0 else None]
    dist.all_gather_object(all_of, mine)
    assert [len(o["text"]) for o in all_of] == [1000 * r for r in range(size)]
    dist.broadcast_object_list(first, 0)
    assert first == [{"rank": 0, "text": ""}], first
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered, 0)
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert out == [f"for {rank}"] and (rank or [g["rank"] for g in gathered] == list(range(size)))
    if torch.__version__ >= "2.15":  # before that, for gloo only
        dist.monitored_barrier()


def groups():
    evens = list(range(0, size, 2))
    some = dist.new_group(evens)
    if rank in evens:
        x = data(torch.float32, rank)
        dist.all_reduce(x, group=some)
        same("all_reduce in a group", x, sum(data(torch.float32, r) for r in evens))
    part = dist.split_group(split_ranks=[[0, 1]])
    if rank < 2:
        x = data(torch.float32, rank)
        dist.all_reduce(x, group=part)
        same("all_reduce in a part", x, data(torch.float32, 0) + data(torch.float32, 1))
    else:
        assert part == dist.GroupMember.NON_GROUP_MEMBER, part
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("a", "b"))
    x = data(torch.float32, rank)
    dist.all_reduce(x, group=mesh["b"].get_group())
    same("all_reduce in a mesh", x, sum(data(torch.float32, rank // 2 * 2 + i) for i in range(min(size, 2))))
    world = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert world.supports_splitting and world.name() == "ouro" and world.options._timeout.total_seconds() == 1800


def hosts():
    """Groups over hosts, with OURO_RENDEZVOUS set to an address of one of them and a port, as ouro-run
    does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = [f"127.0.0.1:{free.getsockname()[1]}"]
    dist.broadcast_object_list(place, 0)
    rendezvous._address = lambda store: (socket.AF_INET, "127.0.0.2")  # otherwise it has to be found out
    for named, address in (("192.0.2.1:7700", "127.0.0.2"), ("localhost:7700", "127.0.0.2"), ("file:/x:1", "127.0.0.2"), (place[0], "127.0.0.1")):
        os.environ["OURO_RENDEZVOUS"] = named
        kept, chosen = rendezvous._keep_port(None)
        kept.close()
        assert chosen.rpartition(":")[0] == address, (named, chosen)
    os.environ["OURO_HOSTID"] = f"host {rank % 2}"
    for g in [dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=20)) for _ in range(2)]:
        x = data(torch.float32, rank)
        dist.all_reduce(x, group=g)
        same("all_reduce over hosts", x, sum(data(torch.float32, r) for r in range(size)))


for part in (reductions, movements, parts_in_a_row, views_of_each_other, messages, coalescing, works, objects, groups, hosts):
    part()
    dist.barrier()
print(f"{compared} tensors are equal")
if rank % 2:  # the others leave it to the end of the process
    dist.destroy_process_group()
