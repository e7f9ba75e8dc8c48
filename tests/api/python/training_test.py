"""Topologies, and mixing with neighbours, with 4 ranks, compared with NumPy."""
import needs
import numpy as np
from needs import raises

import ouro

job = ouro.init()
world, rank, n = job.world, job.rank, job.world_size
assert "ring" in " ".join(ouro.topologies()), ouro.topologies()

for name in ouro.topologies():
    try:
        topology = ouro.Topology(name, n)
    except ouro.InvalidError:
        continue
    if topology.vectors != 1:
        continue
    values = np.random.default_rng(5).standard_normal((n, 10))
    mine = values[rank].copy()
    for step in range(topology.period + 1):
        w = np.array(topology.matrix(step))
        assert w.shape == (n, n)
        values = w @ values
        if np.allclose(w.sum(axis=1), 1):
            assert world.mix(topology.row(step, rank), mine) is mine
        else:
            values = np.linalg.solve(w, values)
    assert np.allclose(mine, values[rank], atol=1e-12), (name, rank)
raises(ouro.InvalidError, ["no-such"], lambda: ouro.Topology("no-such", n))

# A row by hand: each rank takes half of its own value and half of its predecessor's.
row = ouro.Row(0.5, [((rank - 1) % n, 0.5)], [(rank + 1) % n])
x, y = np.full(3, float(rank)), np.zeros(3)
world.mix(row, x, y, stream=ouro.Stream()).wait()
assert y[0] == 0.5 * rank + 0.5 * ((rank - 1) % n) and x[0] == rank

# User-defined topologies: a matrix, one for each round, and edges.
half = np.eye(n) / 2 + np.roll(np.eye(n), 1, axis=1) / 2
own = ouro.Topology.from_matrices(half)
assert own.period == 1 and own.size == n and own.matrix(7) == half.tolist()
two = ouro.Topology.from_matrices([half.tolist(), half.T])
assert two.period == 2 and np.array_equal(two.matrix(3), half.T)
x = np.full(3, float(rank))
assert world.mix(two.row(1, rank), x)[0] == half.T[rank] @ np.arange(n)
edges = ouro.Topology.from_rounds(n, [[([0, 1], None), ([2, 3], 0.75)], [([3, 0], None), ([1, 2], None)]])
assert edges.edge(0, 3) == ([2, 3], 0.75) and edges.edge(1, 0) == ([0, 3], 0.5) and edges.matrix(0)[2] == [0, 0, 0.75, 0.25]
raises(ouro.UnsupportedError, ["edge"], lambda: own.edge(0, 0))
raises(ouro.InvalidError, ["round 1", "row of rank 0", "0.9"], lambda: ouro.Topology.from_matrices([half, 0.9 * half]))
raises(ouro.InvalidError, ["rank 2"], lambda: ouro.Topology.from_rounds(n, [[([0, 1], None), ([3], 1)]]))
raises(ValueError, ["as many columns as rows"], lambda: ouro.Topology.from_matrices(np.ones((2, 3)) / 3))
raises(ValueError, ["number of rows"], lambda: ouro.Topology.from_matrices([half, [[1.0]]]))
raises(TypeError, ["from_matrices"], lambda: ouro.Topology.from_matrices("ring"))

# Push-sum: every rank keeps half and pushes half; the quotient converges to the mean.
weight, x = 1.0, np.full(3, float(rank))
for step in range(60):
    hop = 1 + step % 2
    weight = world.push_sum(ouro.Row(0.5, [((rank - hop) % n, 0.5)], [(rank + hop) % n]), x, weight)
assert np.allclose(x / weight, 1.5), x / weight
job.close()
