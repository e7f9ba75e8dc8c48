"""Messages and batches, with 4 ranks."""
import needs
import numpy as np
from needs import raises

import ouro

job = ouro.init()
world, rank, n = job.world, job.rank, job.world_size
right, left = (rank + 1) % n, (rank - 1) % n

# A ring in which every rank sends first.
world.send(np.full(3, rank, np.int32), right, tag=4)
x = np.zeros(5, np.int32)
got = world.recv(x, left, tag=4)
assert (got.source, got.tag, got.bytes) == (left, 4, 12) and x.tolist() == [left] * 3 + [0, 0]

# From any rank; the source is returned.
if rank == 0:
    seen = set()
    for _ in range(n - 1):
        got = world.recv(x)
        assert x[0] == got.source and got.tag == 0
        seen.add(got.source)
    assert seen == {1, 2, 3}
else:
    world.send(np.array([rank], np.int32), 0)
world.barrier()

# There is no message; a wait with its own time-out ends, and the group stays usable.
assert world.probe(left, tag=7) is None and world.match() is None
error = raises(ouro.DeadlineError, ["0.02 s"], lambda: world.recv(x, left, tag=7, timeout=0.02))
assert error.reason == "deadline" and not world.failed

# A time-out of 0 receives a message that has arrived, and does not wait for one that has not.
raises(ouro.DeadlineError, ["0.001 s"], lambda: world.recv(x, left, tag=7, timeout=0))
assert not world.failed

# Matched messages; messages that are too long, or not of the exact length.
world.send(np.arange(4.0), right, tag=1)
while (message := world.match(left, tag=1)) is None:
    pass
assert message.about.bytes == 32 and world.probe(left, tag=1) is None
raises(ouro.InvalidError, ["32", "8"], lambda: world.recv_matched(message, np.zeros(1)))
y = np.zeros(4)
assert world.recv_matched(message, y).bytes == 32 and y.tolist() == [0, 1, 2, 3]
world.barrier()
raises(ouro.InvalidError, ["rank"], lambda: world.send(y, 17))
raises(ValueError, ["deadline"], lambda: world.recv(y, left, stream=ouro.Stream(), timeout=1))

# A batch: exchanges with both neighbours, and arrays to which only the batch holds references.
a, b = np.zeros(1 << 16), np.zeros(1 << 16)
with ouro.batch():
    world.recv(a, left, tag=2)
    world.recv(b, right, tag=3)
    world.send(np.full(1 << 16, float(rank)), right, tag=2)
    world.send(np.full(1 << 16, float(rank)), left, tag=3)
    assert a[0] == 0
assert (a == left).all() and (b == right).all()

# Without blocking.
stream = ouro.Stream()
work = world.recv(a, left, tag=6, stream=stream)
world.send(b, right, tag=6)
work.wait()
assert (a == rank if n == 2 else a == (left + 1) % n).all()
job.close()
