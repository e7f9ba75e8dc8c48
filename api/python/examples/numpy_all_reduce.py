"""Sums NumPy arrays over all ranks, without a copy.

Run: ouro-run -n 4 python numpy_all_reduce.py
"""
import numpy

import ouro

with ouro.init() as job:  # the launcher sets rank, size and rendezvous; without one, there is a single rank
    world = job.world
    x = numpy.full(1000, job.rank + 1, numpy.float32)
    world.all_reduce(x)  # in place
    assert (x == sum(range(1, job.world_size + 1))).all()

    # Gathers each rank's row into a matrix on all ranks.
    rows = numpy.empty((job.world_size, 3))
    world.all_gather(numpy.array([job.rank, job.rank**2, job.rank**3], float), out=rows)

    # Runs in the background: on a stream, which has its own thread.
    stream = ouro.Stream()
    y = numpy.ones(1 << 16)
    work = world.all_reduce(y, op="max", stream=stream)
    mean = rows.mean(axis=0)  # meanwhile
    work.wait()

    if job.rank == 0:
        print(f"sum over {job.world_size} ranks: {x[0]:g}; means of the rows: {mean.tolist()}")
