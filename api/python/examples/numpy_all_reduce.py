"""NumPy arrays summed up over all ranks, without a copy.

Run: ouro-run -n 4 python numpy_all_reduce.py
"""
import numpy

import ouro

with ouro.init() as job:  # rank, size and how the ranks meet: from the launcher; one rank without one
    world = job.world
    x = numpy.full(1000, job.rank + 1, numpy.float32)
    world.all_reduce(x)  # in place
    assert (x == sum(range(1, job.world_size + 1))).all()

    # Every rank's row, in a matrix on all ranks.
    rows = numpy.empty((job.world_size, 3))
    world.all_gather(numpy.array([job.rank, job.rank**2, job.rank**3], float), out=rows)

    # Beside the program: on a stream, which has a thread of its own.
    stream = ouro.Stream()
    y = numpy.ones(1 << 16)
    work = world.all_reduce(y, op="max", stream=stream)
    mean = rows.mean(axis=0)  # meanwhile
    work.wait()

    if job.rank == 0:
        print(f"sum over {job.world_size} ranks: {x[0]:g}; means of the rows: {mean.tolist()}")
