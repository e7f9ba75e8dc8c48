"""Wrong arrays and arguments are refused with a message, and the group stays usable; accepted
arrays are not copied or leaked."""
import sys
import threading

import needs
import numpy as np
from needs import raises

import ouro

assert "train" in dir(ouro) and "GossipTrainer" in dir(ouro.train)  # nobody has imported it
raises(AttributeError, ["import ouro.nccl"], lambda: ouro.nccl)
job = ouro.init()
world = job.world
x = np.ones((4, 6), np.float32)

raises(ValueError, ["x:", "C order", "ascontiguousarray"], lambda: world.all_reduce(x[:, ::2]))
raises(ValueError, ["x:", "C order"], lambda: world.all_reduce(x.T))
raises(ValueError, ["out:", "C order"], lambda: world.all_reduce(x, np.ones((6, 4), np.float32).T))
frozen = x.copy()
frozen.flags.writeable = False
raises(ValueError, ["x:", "reading only"], lambda: world.all_reduce(frozen))
raises(ValueError, ["out:", "reading only"], lambda: world.all_reduce(x, frozen))
world.all_reduce(frozen, x)  # accepted as input
raises(ValueError, ["out:", "reading only"], lambda: world.all_gather(x, bytes(96)))
raises(TypeError, ["x:", "DLPack", "list"], lambda: world.all_reduce([1.0, 2.0]))
raises(TypeError, ["out", "None"], lambda: world.all_gather(x, None))
raises(TypeError, ["x:", "'Zf'"], lambda: world.all_reduce(np.ones(3, np.complex64)))
raises(TypeError, ["x:", "'>f'", "byte order"], lambda: world.all_reduce(np.ones(3, ">f4")))
raises(TypeError, ["x:", "elements"], lambda: world.all_reduce(np.ones(3, "f4,i4")))
for other in (np.array(["2020-01-01"], "M8[D]"), np.ones(2, "m8[s]"), np.zeros(2, [("day", "M8[D]"), ("n", "i4")])):
    raises(TypeError, ["x:", "does not lend"], lambda: world.all_reduce(other))
if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
    raises(TypeError, ["x:", "does not lend"], lambda: world.all_reduce(np.array(["a"], np.dtypes.StringDType())))
released = memoryview(bytearray(8))
released.release()
raises(ValueError, ["x:", "does not lend", "released"], lambda: world.all_reduce(released))
error = raises(ouro.InvalidError, ["24", "23"], lambda: world.all_reduce(x, np.zeros(23, np.float32)))
assert error.reason == "invalid" and isinstance(error, ValueError) and error.text
raises(ouro.InvalidError, ["float", "double"], lambda: world.all_reduce(x, np.zeros(24)))
raises(ouro.InvalidError, ["root"], lambda: world.broadcast(x, root=5))
raises(ouro.InvalidError, ["band"], lambda: world.all_reduce(x, op="band"))
raises(ValueError, ["op:", "'sum'"], lambda: world.all_reduce(x, op="plus"))
raises(ValueError, ["op:", "premul"], lambda: world.all_reduce(x, op="mulsum"))
raises(ValueError, ["numerics:", "canonical"], lambda: world.all_reduce(x, numerics="exact"))
raises(ValueError, ["both"], lambda: world.all_to_all(x, x.copy(), [24]))
raises(ValueError, ["dtype", "float128"], lambda: job.alloc([3], "float128"))
raises(ValueError, ["priority"], lambda: ouro.Stream(priority="urgent"))
raises(ValueError, ["timeout:", "seconds"], lambda: world.recv(x, timeout=-1.0))
for bad in (-1, 0, float("nan")):
    raises(ValueError, ["deadline:", "more than 0"], lambda: ouro.init(0, 1, deadline=bad))
    raises(ValueError, ["join_deadline:", "more than 0"], lambda: ouro.init(0, 1, join_deadline=bad))
    raises(ValueError, ["deadline:", "more than 0"], lambda: world.split(0, deadline=bad))
raises(ValueError, ["late_after:"], lambda: ouro.init(0, 1, late_after=-1))
raises(TypeError, ["factor:", "a number", "str"], lambda: ouro.premul("a"))
raises(TypeError, ["factor:", "64 bits"], lambda: ouro.premul(1 << 70))
raises(ValueError, ["128 bytes"], lambda: ouro.init(0, 1, id=b"short"))
raises(ouro.Error, ["GPU"], lambda: ouro.Stream(gpu=0))
raises(AttributeError, ["nonsense"], lambda: ouro.nonsense)


class OnGpu:
    """Claims to be an array on a GPU, although there is none."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None, max_version=None):
        raise BufferError("no GPU here")


raises(ValueError, ["x:", "no GPU here"], lambda: world.all_reduce(OnGpu()))

# Trainers refuse wrong types, naming the argument.
train, gradient = ouro.train, np.zeros(24, np.float32)
complete, sgd, entry = train.Topology("complete", 1), train.sgd(0.1), ("x", x.ravel(), gradient)
gossip = lambda *a, **k: train.GossipTrainer(world, *a, **k)  # noqa: E731
raises(TypeError, ["params: each", "tuple", "ndarray"], lambda: gossip(x, [], complete, sgd))
raises(TypeError, ["params: name", "a str", "int"], lambda: gossip([(3, x, True)], [], complete, sgd))
raises(TypeError, ["x: shape", "integers", "str"], lambda: gossip([(*entry, "ab")], [], complete, sgd))
raises(TypeError, ["buffers: each", "ndarray"], lambda: gossip([entry], [x], complete, sgd))
raises(TypeError, ["params: each", "ndarray"], lambda: train.ShardedTrainer([x], sgd, replicas=world))
raises(TypeError, ["params: each", "ndarray"], lambda: train.Optimizer(sgd).step(x))
groups = train.create_groups(job, train.ParallelLayout(0, 1, [1]))
raises(TypeError, ["params: each", "str"], lambda: train.AggregationPlan(groups, "x"))
raises(TypeError, ["filter", "a bool", "str"], lambda: train.AggregationPlan(groups, [("x", x, None)], filter=lambda name: name))
raises(TypeError, ["scaler:", "a dict", "int"], lambda: gossip([entry], [], complete, sgd, scaler=3))
raises(TypeError, ["scaler: scale", "a number", "str"], lambda: gossip([entry], [], complete, sgd, scaler={"scale": "a"}))
raises(TypeError, ["scaler: each key", "int"], lambda: gossip([entry], [], complete, sgd, scaler={1: 2}))
raises(TypeError, ["optimizer:", "a Rule", "int"], lambda: gossip([entry], [], complete, 3))
raises(TypeError, ["rate(update)", "a number", "str"], lambda: train.Schedule(str).at(0))


def first_step(optimizer, schedule):
    trainer = train.GossipTrainer(ouro.init(0, 1, id=ouro.unique_id()).world, [entry], [], complete, optimizer, schedule=schedule)
    trainer.begin_step()
    trainer.grad_ready(0)
    trainer.end_backward()


raises(TypeError, ["schedule:", "a Schedule", "float"], lambda: first_step(sgd, lambda step: 0.1))
raises(TypeError, ["optimizer:", "a Rule", "float"], lambda: first_step(lambda names: 0.1, None))

# None of the errors above has affected the group.
assert not world.failed
assert (world.all_reduce(x) == 1).all()

# In place means in place, and no reference remains.
before = sys.getrefcount(x)
for _ in range(100):
    world.all_reduce(x)
assert sys.getrefcount(x) == before
stream = ouro.Stream()
for _ in range(10):
    world.all_reduce(x, stream=stream)  # the Work is dropped
stream.synchronize()
world.all_reduce(x, stream=stream).wait()
assert sys.getrefcount(x) == before
b = bytearray(8)
world.all_reduce(b)
b.append(1)  # the buffer is not locked

# While a call waits, other Python threads run.
ranks = ouro.threads(2)
went_on = threading.Event()
waiting = threading.Thread(target=lambda: (ranks[0].world.barrier(), went_on.wait(30)))
waiting.start()
went_on.set()
ranks[1].world.barrier()
waiting.join(30)
assert not waiting.is_alive()
