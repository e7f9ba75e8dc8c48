# How ranks come together through a store that holds what others have left, and what they hear if they do not. Usage:
# meeting_test.py [PART]... ; "torchrun" is a part of its own, with a number of restarts.
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import places

COMES = r"the ranks do not meet: "
PARTS = {  # part: exit codes, and the text from all ranks that survive
    "own store": ([0, 0], r"8 groups, one after another"),
    "sub-group": ([0, 0], r"4 groups of one name"),
    "left behind": ([0, 0], r"joined in spite of [34] stale keys"),
    "own time-out": ([0, 0], COMES + r"ranks \[1\] of 2 have not arrived \(waited for 0:00:02\)|was not there"),
    "other ranks": ([0, 0, 0], COMES + r"rank (0 makes a group of ranks \[0, 1\], where rank [12] makes one of ranks \[0, 1, 2\]|"
                                       r"2 makes a group of ranks \[0, 1, 2\], where rank 0 makes one of ranks \[0, 1\]); all ranks must"),
    "other sizes": ([0, 0], COMES + r"rank 0 makes a group of ranks \[0, 1\], where rank 1 makes one of ranks \[0, 1, 2\]; all ranks must"),
    "two callers": ([0, 0], COMES + r"rank \d makes a group of ranks \[\d, \d\], where rank \d makes one of ranks \[\d, \d\]; all ranks must"),
    "ended before": ([0, 0, 0], COMES + r"rank 1 has not joined, and its process \(\d+ on this host\) has ended|left early"),
    "ended while joining": ([0, 0, 0], COMES + r"rank 1 has not joined, and its process \(\d+ on this host\) has ended|left early"),
    "failed": ([0, 0, 0], COMES + r"rank 1 did not join: no more descriptors|heard of it"),
    "again": ([0, 0], r"joined at the second attempt"),
}
if not places.arguments():
    def torchrun(restarts, *options):
        """A rank that is killed in each of so many attempts; the last one goes well."""
        command = [places.interpreter(), "-m", "torch.distributed.run", *options, "--nproc-per-node", "3", "--max-restarts", str(restarts),
                   "--monitor-interval", "0.1", __file__, "--rank", "0", "3", "", "torchrun", str(restarts)]
        done = subprocess.run(command, capture_output=True, text=True, env=places.environment(), timeout=60 + 30 * restarts)
        assert done.returncode == 0 and done.stdout.count(f"attempt {restarts}: all have come") == 3, (done.stdout + done.stderr)[-4000:]
        print("torchrun:", *options, restarts, "restarts", flush=True)

    if sys.argv[1:2] == ["torchrun"]:
        restarts = int(sys.argv[2])
        for options in [], ["--standalone"], ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]:
            torchrun(restarts, *options)
        sys.exit()
    for part in sys.argv[1:] or PARTS:
        codes, text = PARTS[part]
        for rank, said in enumerate(places.run(__file__, len(codes), part, expected=codes, seconds=100)):
            found = re.search(f"(?:{text}).*", said)
            assert found, f"{part}: rank {rank} does not say {text}:\n{said[-3000:]}"
            print(f"{part}: rank {rank}:", found[0][:200], flush=True)
    sys.exit()

import datetime

import torch
import torch.distributed as dist

import ouro.torch  # noqa: F401
from ouro.torch import build, rendezvous

rank, size, folder, (part, *rest) = places.arguments()
LONG = datetime.timedelta(seconds=600)  # longer than the test: what ends has not waited for it


def summed(group=None):
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert (x == dist.get_world_size(group)).all()


def init(store, ranks=None, timeout=LONG):
    dist.init_process_group("ouro", store=store, rank=rank, world_size=ranks or size, timeout=timeout)


def fails(f):
    try:
        f()
    except RuntimeError as e:
        print(f"{type(e).__name__}: {e}", flush=True)
        return
    raise SystemExit(f"{part} went through")


def local_group(ranks, timeout=LONG):
    """A group of which other ranks of the world need not know."""
    return dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def create(ranks, store, group_rank):
    """Calls the creator as PyTorch does for the first group that the program makes after the default one."""
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = dist.PrefixStore("1/", store), group_rank, len(ranks)
    options.timeout, options.group_id, options.global_ranks_in_group = LONG, "1", ranks
    return rendezvous.create(options, None, "ouro")


if part == "torchrun":
    attempt, last = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(rest[0])
    dist.init_process_group("ouro", timeout=datetime.timedelta(seconds=25))
    summed()
    for _ in range(2):
        summed(dist.new_group(list(range(3))))
    if attempt == last:
        print(f"attempt {attempt}: all have come", flush=True)
        dist.destroy_process_group()
        sys.exit()
    if dist.get_rank() == attempt % 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # torchrun ends it
elif part == "own store":
    stores = [dist.FileStore(folder + "/file", size)]
    if rank == 0:
        stores.append(dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False))
        stores[0].set("port", str(stores[1].port))
    else:
        stores.append(dist.TCPStore("127.0.0.1", int(stores[0].get("port")), size, False))
    for store in stores:
        for _ in range(4):
            time.sleep(0.1 * (rank == 0))  # the other rank finds what rank 0 has left, if it has left anything
            init(store)
            summed()
            dist.destroy_process_group()
    assert not stores[1].check(["default_pg//ouro/meeting"])
    print("8 groups, one after another", flush=True)
    stores[0].set(f"over {rank}", "1")
    stores[0].get(f"over {1 - rank}")
elif part == "sub-group":
    init(dist.FileStore(folder + "/file", size))
    for _ in range(2):
        kept = []
        for _ in range(2):  # the same name each time
            time.sleep(0.1 * (rank == 0))
            group = local_group([0, 1])
            summed(group)
            kept.append(group)
            dist.destroy_process_group(group)
    print("4 groups of one name", flush=True)
elif part == "left behind":  # by a job that was killed, after it had met and before
    store = dist.FileStore(folder + "/file", size)
    keys = dist.PrefixStore("1/", store)
    if rank == 0:
        child = os.fork()
        if child == 0:
            with rendezvous.Meeting(keys, 1, 2, LONG) as meeting:
                meeting.meet(None)
                os._exit(0)
        if os.fork() == 0:
            with rendezvous.Meeting(keys, 0, 2, LONG) as meeting:
                meeting.meet(lambda: bytes(128))
                os._exit(0)
        os.wait(), os.wait()
        stale = store.num_keys()
        store.set("killed", str(stale))
    stale = int(store.get("killed"))
    create([0, 1], store, rank)
    print(f"joined in spite of {stale} stale keys", flush=True)
elif part == "own time-out":
    store = dist.FileStore(folder + "/file", size)
    init(store)
    if rank == 0:
        fails(lambda: local_group([0, 1], datetime.timedelta(seconds=2)))
        store.set("over", "1")
    else:
        print("was not there")
        store.get("over")
elif part == "other ranks":
    store = dist.FileStore(folder + "/file", size)
    fails(lambda: create([0, 1] if rank == 0 else [0, 1, 2], store, rank))
elif part == "other sizes":
    fails(lambda: init(dist.FileStore(folder + "/file", 2), size + rank))
elif part == "two callers":  # each is the first rank of its group
    store = dist.FileStore(folder + "/file", size)
    fails(lambda: create([rank, rank + 1], store, 0))
elif part == "ended before":
    init(dist.FileStore(folder + "/file", size))
    summed()
    if rank == 1:
        print("left early", flush=True)
        os._exit(0)
    fails(lambda: dist.new_group([0, 1, 2], timeout=LONG))
elif part in ("ended while joining", "failed", "again"):
    store = dist.FileStore(folder + "/file", size)
    join = build.adapter().join
    first = True

    def does_not_join(**options):
        global first
        if part == "ended while joining":
            print("left early", flush=True)
            os._exit(0)
        if first:
            first = False
            raise RuntimeError("no more descriptors")
        return join(**options)

    if rank == 1:
        build.adapter().join = does_not_join
    if part == "again":
        fails(lambda: create([0, 1], store, rank))
        create([0, 1], store, rank)
        print("joined at the second attempt", flush=True)
    else:
        fails(lambda: create(list(range(size)), store, rank))
        if part == "failed" and rank == 1:  # it lives on
            for r in (0, 2):
                store.get(f"heard {r}")
            print("heard of it", flush=True)
        elif part == "failed":
            store.set(f"heard {rank}", "1")
