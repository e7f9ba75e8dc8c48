"""ouro.train.ShardedTrainer and Window on NumPy arrays, with 4 ranks, compared with their
formulas."""
import needs
import numpy as np
from needs import raises

import ouro
from ouro import train

job = ouro.init()
rank, n = job.rank, job.world_size


def slope(r, x):
    """The gradient of rank r's part of the loss."""
    return x - np.sin(1 + 1.3 * r + 0.5 * np.arange(x.size)).reshape(x.shape)


def trained(steps, saved=None, **options):
    """The parameters after some steps, from ranks with different initial values, and the
    trainer."""
    x, frozen, y = np.full((3, 2), 1.0 + rank), np.full(3, float(rank)), np.full(5, 2.0 * rank)
    gradients = [np.zeros((3, 2)), None, np.zeros(5)]
    trainer = train.ShardedTrainer([("x", x, gradients[0], [3, 2]), ("frozen", frozen, None), ("y", y, gradients[2])],
                                   lambda names: train.adam(0.1), **options)
    if saved:
        trainer.load(saved)
    for _ in range(steps):
        trainer.begin_step()
        for p in (2, 0):
            np.asarray(trainer.gradient(p))[:] = slope(rank, np.asarray(trainer.value(p)))
            trainer.grad_ready(p)
        trainer.end_backward()
    assert trainer.steps == steps + (3 if saved else 0) and (frozen == 0).all(), "not rank 0's"
    return np.concatenate([np.asarray(trainer.value(p)) for p in (0, 2)]), trainer


def expected(steps, clip=0.0):
    """Adam on the mean gradient, by its formula."""
    x = np.concatenate([np.full(6, 1.0), np.zeros(5)])
    m, v = np.zeros(11), np.zeros(11)
    for t in range(1, steps + 1):
        g = np.mean([np.concatenate([slope(r, x[:6]), slope(r, x[6:])]) for r in range(n)], axis=0)
        norm = np.linalg.norm(g)
        if clip:
            g *= min(1, clip / (norm + 1e-6))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return x, norm


world = job.world
rows = [job.group([r, r + 1]) for r in (0, 2) if rank in (r, r + 1)]
columns = [job.group([r, r + 2]) for r in (0, 1) if rank in (r, r + 2)]
for options in ({"shards": world}, {"replicas": world}, {"shards": rows[0], "replicas": columns[0]},
                {"shards": world, "params_in_bucket": False, "bucket_mb": 0, "order": [2, 0]}, {"shards": world, "grads_in_bucket": True}):
    x, trainer = trained(5, **options)
    assert np.allclose(x, expected(5)[0], atol=1e-12), options
    assert trainer.lr == 0.1 and trainer.scale == 1 and np.isnan(trainer.grad_norm)
    trainer.close()
x, trainer = trained(2, shards=world, clip_norm=0.5)
assert np.allclose(x, expected(2, 0.5)[0], atol=1e-12) and abs(trainer.grad_norm - expected(2, 0.5)[1]) < 1e-12
assert trainer.gradient(1) is None and set(trainer.shard) <= {"x", "y"}

# A saved state continues with the same bits.
x, trainer = trained(3, shards=world)
again, _ = trained(2, trainer.save(), shards=world)
assert (again == trained(5, shards=world)[0]).all()
raises(IndexError, ["param"], lambda: trainer.value(3))
raises(ValueError, ["shards, replicas"], lambda: train.ShardedTrainer([("x", x, x.copy())], train.sgd()))
raises(ValueError, ["an array, or None"], lambda: train.ShardedTrainer([("x", x, True)], train.sgd(), shards=world))
raises(ouro.InvalidError, ["begin_step"], lambda: trainer.end_backward())


class Stepper:
    """Needs whole parameters, but a shard may have only a part of one."""

    groups = []


raises(TypeError, ["optimizer:", "a Rule"], lambda: train.ShardedTrainer([("x", x, x.copy())], lambda names: Stepper(), shards=world))

# A window: others read, write and add without its owner taking part.
shown = train.Window(world, np.arange(4.0) + 10 * rank)
right = (rank + 1) % n
assert (shown.rank, shown.size, shown.count) == (rank, n, 4)
assert (shown.get(right, np.empty(2), offset=1) == np.array([1, 2]) + 10 * right).all()
shown.fence()
shown.put(right, np.array([7.0]), offset=3)
shown.fence()
for r in range(n):
    shown.accumulate(r, np.ones(2))
shown.fence()
assert (shown.get(rank, np.empty(4)) == np.array([n, n + 1, 2, 7]) + [10 * rank, 10 * rank, 10 * rank, 0]).all()
assert shown.version(rank) == 1 + n
mean = shown.average_donors([0, 1], [1.0, 3.0], np.full(4, 100.0), keep=0.5)
assert np.allclose(mean, 50 + 0.5 * (np.array([n, n + 1, 2, 7]) + [7.5, 7.5, 7.5, 0])), mean
shown.fence()
shown.publish(np.zeros(4))
shown.fence()
assert (shown.get(right, np.ones(4)) == 0).all()
raises(ouro.InvalidError, ["rank"], lambda: shown.get(n, np.empty(4)))
trainer = shown = None
job.close()
