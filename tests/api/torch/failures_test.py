# Failures in a group: every rank gets an error with a message, and nothing hangs. Usage:
# failures_test.py [PART]...
import re
import signal
import sys
import time

import places

PARTS = {  # part: exit codes, and the text from all surviving ranks
    "time-out": ([0, 0], r"DistBackendError: ouro: (deadline: .* the timeout of its|revoked).*"),
    "wait": ([0, 0], r"not over after 300 ms of waiting"),
    "abort": ([0, 0], r"aborted after 0\.\d"),
    "killed": ([0, -signal.SIGKILL], r"DistBackendError: ouro: peer-dead: rank 1 \("),
    "shapes": ([0, 0], r"DistBackendError: ouro: mismatch: .*"),
    "message": ([0, 0], r"recv of another length|mismatch"),
    "devices": ([0, 0], r"a tensor is on meta; those on cpu and cuda are served"),
    "interrupt": ([0, 0], r"KeyboardInterrupt after 1\.|interrupted rank"),
    "interrupt-blocking": ([0, 0], r"KeyboardInterrupt after [12]\.|revoked: .*a signal handler of its Python program"),
    "joining": ([0, 0], r"KeyboardInterrupt after 0\.\d s in the store, 0\.\d s in ouro|not interrupted rank"),
    "no memory": ([0, 0], r"DistBackendError: ouro: revoked: .*(allocate|memory)"),
    "overlap": ([0, 0], r"several elements of an output of shape \[4\] and strides \[0\] are at the same address|16 calls later"),
    "stale batch": ([0, 0], r"nothing is kept of a batch that was left"),
    "many": ([0, 0], r"1500 messages, [1-9]\d? threads"),
    "leaving": ([0, 0], r"DistBackendError: ouro: revoked: .* closed before a message came"),
    "detail": ([0, 0], r"Detected mismatch between collectives"),
    "monitored": ([0, 0], r"Rank 1 failed to pass monitoredBarrier in 1000 ms"),
    "fork": ([0, 0], r"children ended with \[0, 0, 0\], and the group goes on"),
    "in a child": ([0, 0], r"the child: DistBackendError: ouro: forked: "),
    "forgotten": ([0, 0], r"left to the end"),
}
ALONE = ["detail", "forgotten", "killed"]  # the other parts share processes, with a group for each
if not places.arguments():
    together = [part for part in PARTS if part not in ALONE]
    for parts in [sys.argv[1:]] if sys.argv[1:] else [together, *([part] for part in ALONE)]:
        codes = PARTS[parts[-1]][0]
        texts = places.run(__file__, len(codes), *parts, expected=codes, seconds=100,
                           **({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if parts == ["detail"] else {}))
        for part in parts:
            for rank, code in enumerate(codes):
                own = texts[rank].partition(f"== {part}\n")[2].partition("\n== ")[0]
                found = re.search(f"(?:{PARTS[part][1]}).*", own)
                assert code or found, f"{part}: rank {rank} does not say {PARTS[part][1]}:\n{texts[rank][-3000:]}"
            print(f"{part}:", re.search(f"(?:{PARTS[part][1]}).*", texts[0])[0][:200], flush=True)
    sys.exit()

import _thread
import datetime
import os
import tempfile
import threading
import types
import weakref

import torch
import torch.distributed as dist

import ouro.torch
from ouro.torch import rendezvous

rank, size, folder, parts = places.arguments()


def say(e):
    print(f"{type(e).__name__}: {e}", flush=True)


def fails(f, *kinds):
    try:
        f()
    except kinds or dist.DistBackendError as e:
        say(e)
    else:
        raise SystemExit(f"{part} went through")


def together():
    """Waits until both ranks have arrived, without using the group."""
    store.set(f"here {rank}", "1")
    store.get(f"here {1 - rank}")


def wait_for(child):
    """The exit code of a child, which is killed after 10 s."""
    for _ in range(100):
        if (ended := os.waitpid(child, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def do(part):
    global x
    if part == "time-out":
        begin = time.monotonic()
        if rank == 0:
            fails(lambda: dist.all_reduce(x))
            assert 1.5 < time.monotonic() - begin < 10
        else:
            time.sleep(3)
            fails(lambda: dist.all_reduce(x))
    elif part == "wait":
        work = dist.all_reduce(x, async_op=True) if rank == 0 else None
        if work:
            fails(lambda: work.wait(datetime.timedelta(milliseconds=300)))
            assert not work.is_completed()
        else:
            print("not over after 300 ms of waiting: the other rank")
            store.get("waited")
        if rank == 0:
            store.set("waited", "1")
            work.wait()
        else:
            dist.all_reduce(x)
        assert (x == 4).all()
    elif part == "abort":
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            time.sleep(0.2)
            begin = time.monotonic()
            dist.distributed_c10d._abort_process_group()
            fails(work.wait)
            print(f"aborted after {time.monotonic() - begin:.2f} s", flush=True)
            together()
        else:
            time.sleep(0.5)
            begin = time.monotonic()
            fails(lambda: dist.all_reduce(x))
            print(f"aborted after {time.monotonic() - begin:.2f} s", flush=True)
            together()
    elif part == "killed":
        if rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        fails(lambda: dist.all_reduce(x))
    elif part == "shapes":
        fails(lambda: dist.all_reduce(torch.ones(10 + rank)))
    elif part == "message":
        if rank == 0:
            dist.send(torch.ones(5), 1)
            print("recv of another length")
            together()
        else:
            fails(lambda: dist.recv(torch.ones(4), 0))
            together()
    elif part == "devices":
        fails(lambda: dist.all_gather([torch.ones(2, device="meta")] * 2, torch.ones(2)), ValueError)
        fails(lambda: dist.all_gather([torch.ones(2)] * 2, torch.ones(3)), ValueError)
        fails(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), dist.DistBackendError)
        dist.all_reduce(x)  # the group is still usable
    elif part == "overlap":  # found before anything is exchanged: the other rank hears nothing of it
        wrong, ok, big = torch.ones(1).expand(4), torch.ones(4), torch.ones(1).expand(8)
        calls = [lambda: dist.all_reduce(wrong), lambda: dist.all_reduce_coalesced([ok, wrong]), lambda: dist.broadcast(wrong, 0),
                 lambda: dist.reduce(wrong, 1), lambda: dist.all_gather([ok, wrong], ok),
                 lambda: dist.all_gather_into_tensor(big, ok), lambda: dist.all_gather_coalesced([[ok], [wrong]], [ok]),
                 lambda: dist.gather(ok, [ok, wrong], 1), lambda: dist.scatter(wrong, None, 0),
                 lambda: dist.reduce_scatter(wrong, [ok, ok]), lambda: dist.reduce_scatter_tensor(wrong, torch.ones(8)),
                 lambda: dist.all_to_all([ok, wrong], [ok, ok]), lambda: dist.all_to_all_single(wrong, ok), lambda: dist.recv(wrong, 0),
                 lambda: dist.irecv(wrong, 0), lambda: dist.recv(wrong)]
        for call in calls if rank == 1 else []:
            fails(call, ValueError)
        if rank == 0:
            print(f"{len(calls)} calls later", flush=True)
        for root in (0, 1):  # what is only read may overlap
            dist.broadcast(wrong if rank == root else ok, root)
        dist.all_reduce(x)
    elif part == "stale batch":
        def raises_inside():
            with dist._coalescing_manager(device=torch.device("cpu")):
                dist.broadcast(torch.ones(3), 0, async_op=True)
                raise ValueError("inside")

        def wrong_message():
            dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(3), 1 - rank),
                                    dist.P2POp(dist.irecv, torch.ones(1).expand(3), 1 - rank)])

        for leave in raises_inside, wrong_message:
            fails(leave, ValueError)
            kept = []
            for _ in range(3):
                y = torch.ones(1000)
                kept.append(weakref.ref(y))
                dist.broadcast(y, 0, async_op=True).wait()
                dist.isend(y, 1 - rank, tag=1)
                dist.recv(y, 1 - rank, tag=1)
                del y
            assert not any(t() is not None for t in kept)
            dist.distributed_c10d._world.pg_coalesce_state.clear()  # PyTorch itself would not run further calls of some kinds
        dist.recv(y := torch.empty(3), 1 - rank)  # what the batch of messages had sent before it was left
        assert (y == 1).all()
        print("nothing is kept of a batch that was left", flush=True)
    elif part == "many":
        outs = [torch.empty(50) for _ in range(1500)]
        works = [dist.irecv(out, 1 - rank, tag=i) for i, out in enumerate(outs)]
        threads = len(os.listdir("/proc/self/task"))
        works += [dist.isend(torch.full((50,), float(i)), 1 - rank, tag=i) for i in reversed(range(1500))]
        for w in works:
            w.wait()
        assert all((out == i).all() for i, out in enumerate(outs))
        print(f"1500 messages, {threads} threads", flush=True)
    elif part == "leaving":  # with a receive that nobody answers, and a send that is under way
        for leaving in (0, 1):
            group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=600))  # longer than the test
            if rank == leaving:
                never, anyone = dist.irecv(torch.ones(3), 1 - rank, group=group, tag=99), dist.irecv(torch.ones(3), group=group, tag=98)
                sent = dist.isend(torch.full((1 << 20,), 7.0), 1 - rank, group=group)
                dist.destroy_process_group(group)
                sent.wait()
                fails(never.wait)
                fails(anyone.wait)
            else:
                time.sleep(0.5)  # most likely the other rank is leaving now
                dist.recv(y := torch.empty(1 << 20), 1 - rank, group=group)
                assert (y == 7).all()
                dist.destroy_process_group(group)
    elif part == "interrupt":
        if rank == 0:
            threading.Timer(1, _thread.interrupt_main).start()
            begin = time.monotonic()
            work = dist.all_reduce(x, async_op=True)
            try:
                work.wait()
            except KeyboardInterrupt:
                print(f"KeyboardInterrupt after {time.monotonic() - begin:.1f} s", flush=True)
            store.set("interrupted", "1")
            work.wait()  # it continued
        else:
            store.get("interrupted")
            dist.all_reduce(x)
            print("interrupted rank 0", flush=True)
    elif part == "interrupt-blocking":
        if rank == 0:
            threading.Timer(1, _thread.interrupt_main).start()
            begin = time.monotonic()
            try:
                dist.all_reduce(x)
            except KeyboardInterrupt:
                print(f"KeyboardInterrupt after {time.monotonic() - begin:.1f} s", flush=True)
        else:
            store.get("interrupted")
            fails(lambda: [dist.all_reduce(x) for _ in range(2)])  # rank 0 has done its part of the first one
        store.set("interrupted", "1")
    elif part == "joining":  # with ranks that never join
        if rank == 0:
            after = []
            for came in (False, True):  # up to the store
                alone = dist.HashStore()
                if came:
                    other = rendezvous.Meeting(alone, 1, 2, datetime.timedelta(seconds=60))
                    threading.Thread(target=other.meet, args=(None,), daemon=True).start()
                options = types.SimpleNamespace(store=alone, group_rank=0, group_size=2, timeout=datetime.timedelta(seconds=60), group_id="")
                begin = time.monotonic()
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    rendezvous.create(options, None, "ouro")
                    raise SystemExit("joined")
                except KeyboardInterrupt:
                    after.append(time.monotonic() - begin - 0.3)
            never = dist.FileStore(tempfile.mktemp(), 2)
            for own, text in (0, "ranks [1] of 2 have not arrived (waited for 0:00:00.3"), (1, "rank 0 has not said where to meet (waited"):
                meeting = rendezvous.Meeting(never, own, 2, datetime.timedelta(seconds=0.3))
                places.raises(RuntimeError, "the ranks do not meet: " + text, lambda: meeting.meet(lambda: b""))
            print("KeyboardInterrupt after {:.1f} s in the store, {:.1f} s in ouro".format(*after), flush=True)
        else:
            print("not interrupted rank", flush=True)
    elif part == "no memory":  # for the copy that a transposed tensor needs, on one rank
        if rank == 0:
            too_large = torch.ones(1, 1).expand(1 << 22, 1 << 22)
            fails(lambda: dist.broadcast(too_large, 0))
        else:
            fails(lambda: dist.broadcast(x, 0))
    elif part == "fork":  # with the thread of a stream, and one that waits for a message
        work, waiting = dist.all_reduce(x, async_op=True), dist.irecv(y := torch.ones(3), 1 - rank, tag=5)
        work.wait()
        loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")
        assert [int(i) for i in loader] == list(range(8))
        children = []
        for end in (os._exit, sys.exit, lambda code: None):
            child = os.fork()
            if child == 0:
                dist.is_initialized()
                end(0)
                sys.exit(0)
            children.append(wait_for(child))
        dist.send(torch.full((3,), 7.0), 1 - rank, tag=5)
        waiting.wait()
        dist.all_reduce(x)
        assert (y == 7).all() and (x == 8).all()
        print(f"children ended with {children}, and the group goes on", flush=True)
    elif part == "in a child":  # of a parent at rest, and of one with work in flight that its peer has yet to join
        for busy in False, True:
            pending = [dist.all_reduce(x, async_op=True), dist.irecv(torch.ones(3), 1 - rank, tag=6)] if busy and rank == 0 else []
            child = os.fork()
            if child == 0:
                calls = [lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True).wait(),
                         lambda: dist.send(x, 1 - rank, tag=8), lambda: dist.irecv(x, 1 - rank, tag=8).wait(),
                         *(work.wait for work in pending)]
                for call in calls:
                    try:
                        call()
                        os._exit(1)
                    except dist.DistBackendError as e:
                        if "ouro: forked: " not in str(e):
                            os._exit(2)
                        said = e
                print(f"the child: DistBackendError: {said}", flush=True)
                os._exit(0)
            assert (code := wait_for(child)) == 0, code
            if rank == 1 and busy:
                dist.all_reduce(x)
                dist.send(torch.ones(3), 0, tag=6)
            for work in pending:
                work.wait()
            dist.all_reduce(x)
    elif part == "detail":
        assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "_ProcessGroupWrapper"
        fails(lambda: dist.all_reduce(x) if rank else dist.broadcast(x, 0), RuntimeError)
    elif part == "monitored":
        if rank == 0:
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(0)))
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)))
            together()
        else:
            together()
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(0)))
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)))
            print("Rank 1 failed to pass monitoredBarrier in 1000 ms, as rank 0 has said")
            store.set("both failed", "1")
        if rank == 0:  # rank 1's messages for failed barriers must not be taken for its arrival
            store.get("both failed")
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)))
            store.set("alone", "1")
        else:
            store.get("alone")
            fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)))
        dist.monitored_barrier()
    elif part == "forgotten":
        work = dist.irecv(torch.ones(3), 1 - rank)  # it never arrives
        print("left to the end", flush=True)


for part in parts:
    print(f"== {part}", flush=True)
    old = part == "monitored" and torch.__version__ < "2.15"  # older versions have it for gloo only
    if old:
        ouro.torch.stand_in("gloo")
    places.init("gloo" if old else "ouro", f"{folder}/{part}", timeout=datetime.timedelta(seconds=2 if part == "time-out" else 20))
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert (x == 2).all()
    do(part)
    if part not in ALONE and dist.is_initialized():
        dist.destroy_process_group()
