"""The trainers of ouro.train on NumPy arrays, with 4 ranks, compared with their formulas."""
import ctypes
import sys
import threading

import needs
import numpy as np
from needs import raises

import ouro
from ouro import train

job = ouro.init()
rank, n = job.rank, job.world_size


def centre(r):
    return np.sin(1 + 1.3 * r + 0.5 * np.arange(6.0))


# Decentralised: 0.5 ||x - centre||^2, in two parameters; the gradient of one is the user's own array.
x, frozen, y, gradient = np.zeros((2, 2)), np.full(3, rank), np.zeros(2), np.zeros((2, 2))
half = np.eye(n) / 2 + np.roll(np.eye(n), 1, axis=1) / 2
topology = train.Topology.from_matrices(np.stack([half, half.T]))
trainer = train.GossipTrainer(job.world, [("x", x, gradient, [2, 2]), ("frozen", frozen, None), ("y", y, True)], [],
                              topology, lambda names: train.sgd(0.1), params_in_bucket=False)
assert (frozen == 0).all(), "not rank 0's"
all_x = np.zeros((n, 6))
for step in range(6):
    trainer.begin_step()
    gradient[:] = (x - centre(rank)[:4].reshape(2, 2))
    trainer.grad_ready(2, y - centre(rank)[4:])
    trainer.grad_ready(0)
    trainer.end_backward()
    slopes = all_x - [centre(r) for r in range(n)]
    mixed = np.array(topology.matrix(step - 1)) @ all_x if step else all_x
    all_x = mixed - 0.1 * slopes
    assert np.allclose(np.concatenate([x.ravel(), y]), all_x[rank], atol=1e-13), step
assert trainer.steps == 6 and trainer.lr == 0.1 and trainer.buckets == [[2, 0]]
assert np.shares_memory(np.asarray(trainer.value(0)), x)
far = trainer.global_average(distance=True)
assert np.allclose(x.ravel(), all_x.mean(0)[:4]) and abs(far - np.linalg.norm(all_x.mean(0) - all_x[rank])) < 1e-12
trainer.revert()
assert np.allclose(x.ravel(), all_x[rank][:4])
raises(ouro.InvalidError, ["no average"], trainer.revert)
raises(ouro.InvalidError, ["another count"], lambda: (trainer.begin_step(), trainer.grad_ready(0, np.zeros(5))))
raises(ValueError, ["'both'", "'bucket', 'global'"], lambda: train.GossipTrainer(job.world, [("x", x, True)], [], topology,
                                                                                 train.sgd(), clip_scope="both"))

raises(ValueError, ["was to be passed"], lambda: trainer.grad_ready(2))


class OnGpu:
    """An array that claims to be on a GPU."""

    def __init__(self, x):
        self.x = x

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        capsule = self.x.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int.from_address(pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = 2
        return capsule


raises(ValueError, ["'g'", "find_unused needs memory"],
       lambda: train.GossipTrainer(job.world, [("g", OnGpu(np.zeros(3)), True)], [], topology, train.sgd(), find_unused=True))
raises(ValueError, ["an array, or None"], lambda: train.Optimizer(train.sgd()).step([("g", y, True)]))

# An optimiser alone: Adam's formula; its state is loaded into another one.
p, g = np.linspace(-1, 1, 5), np.cos(np.arange(5.0))
first = train.Optimizer(train.adam(0.01, eps=1e-7))
m, v, want = 0, 0, p.copy()
for t in range(1, 4):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    want -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
    first.step([("p", p, g)])
assert np.allclose(p, want, atol=1e-14)
second, q = train.Optimizer(train.adam(eps=1e-7)), p.copy()
second.load(first.save())
assert second.lr == 0.01
for optimiser, values in ((first, p), (second, q)):
    optimiser.step([("p", values, g)], lr=0.5)
assert (p == q).all() and abs(p - want).max() > 0.1

# Other threads run while it computes: this thread keeps the GIL except where a call releases it.
if rank == 0:
    ticks, done, big = [0], threading.Event(), np.zeros(1 << 22, np.float32)

    def tick():
        while not done.wait(0.0002):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    sys.setswitchinterval(100)
    before = ticks[0]
    for _ in range(50):
        second.step([("big", big, big)])
        if ticks[0] > before + 3:  # more than the one switch that may have been requested before the interval was set
            break
    sys.setswitchinterval(0.005)
    done.set()
    thread.join()
    assert ticks[0] > before + 3, "no other thread ran"
raises(ouro.InvalidError, ["beta1"], lambda: train.adam(beta1=2))

# A table of rates is queried for the run's steps only; what it raises at its end is raised, and ends the trainer.
rates, z = [0.5, 0.25], np.zeros(2)
trainer = train.GossipTrainer(job.world, [("z", z, True)], [], train.Topology("complete", n), train.sgd(), params_in_bucket=False,
                              schedule=train.Schedule(lambda update: rates[update]))


def down():
    trainer.begin_step()
    trainer.grad_ready(0, np.ones(2))
    trainer.end_backward()


for step in range(2):
    down()
assert (z == -0.75).all(), z
raises(IndexError, ["out of range"], lambda: trainer.lr)
raises((IndexError, ouro.Error), ["out of range"], down)
raises(ouro.Error, ["out of range"], down)

schedule = train.cosine_with_warmup(1.0, 10, 4, eta_min=0, warmup_decay=0)
assert [schedule.at(u) for u in (0, 2, 4, 14)] == [0, 0.5, 1, 0] and train.Schedule(lambda u: 2 * u).at(4) == 8
trainer = None
job.close()
