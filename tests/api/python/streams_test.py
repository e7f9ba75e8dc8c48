"""Operations on streams, with 4 ranks: order, works, events, several threads."""
import threading
import time

import needs
import numpy as np
from needs import raises

import ouro

job = ouro.init()
world, rank, n = job.world, job.rank, job.world_size

stream = ouro.Stream(priority="high", name="test")
x = np.full(1000, rank, np.float64)
first = world.all_reduce(x, stream=stream)
second = world.all_reduce(x, op="avg", stream=stream)
assert isinstance(second, ouro.Work)
second.wait()
assert first.done() and (x == 6).all()
second.wait()
first.check()

# A Work that is dropped: its arrays live until it has ended.
world.all_reduce(np.full(1 << 18, rank, np.float32), stream=stream)
assert stream.synchronize() is None

# A wait whose own time-out is too short; the operation continues.
if rank == 0:
    work = world.barrier(stream=stream)
    error = raises(ouro.DeadlineError, ["10 ms"], lambda: work.wait(0.01))
    assert isinstance(error, TimeoutError) and not work.done()
    world.send(np.zeros(1), 1, tag=5)
    work.wait()
else:
    if rank == 1:
        world.recv(np.zeros(1), 0, tag=5)
    world.barrier()
assert not world.failed

# An event orders two streams.
other = ouro.Stream()
event = ouro.Event()
assert event.query()
a = np.full(1 << 16, rank, np.int64)
world.all_reduce(a, stream=stream)
event.record(stream)
event.wait_on(other)
half = world.split(rank // 2)
half.all_reduce(a, stream=other).wait()
assert event.query() and (a == 12).all()
event.record(world.barrier(stream=other))
event.synchronize()

# The GIL is released while a thread waits: another thread computes and sends what the first one
# waits for.
got = np.zeros(1)
if rank == 0:
    waiting = threading.Thread(target=lambda: world.recv(got, 0, tag=9))
    waiting.start()
    time.sleep(0.05)
    world.send(np.ones(1), 0, tag=9)
    waiting.join(30)
    assert got[0] == 1
world.barrier()
job.close()
