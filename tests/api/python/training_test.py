"""Topologies, and mixing with neighbours, with 4 ranks, beside NumPy."""
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

# A row by hand: each takes half of its own and half of the one before it.
row = ouro.Row(0.5, [((rank - 1) % n, 0.5)], [(rank + 1) % n])
x, y = np.full(3, float(rank)), np.zeros(3)
world.mix(row, x, y, stream=ouro.Stream()).wait()
assert y[0] == 0.5 * rank + 0.5 * ((rank - 1) % n) and x[0] == rank

# Push-sum: everybody keeps half and pushes half; the quotient is the mean in the end.
weight, x = 1.0, np.full(3, float(rank))
for step in range(60):
    hop = 1 + step % 2
    weight = world.push_sum(ouro.Row(0.5, [((rank - hop) % n, 0.5)], [(rank + hop) % n]), x, weight)
assert np.allclose(x / weight, 1.5), x / weight
job.close()
