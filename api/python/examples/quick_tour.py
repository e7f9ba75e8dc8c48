"""A quick tour of the package: groups, collectives, messages, streams, failures, a trainer. Needs only NumPy.

Run: ouro-run -n 4 python quick_tour.py
"""
import numpy as np

import ouro
from ouro import train

with ouro.init() as job:
    rank, size, world = job.rank, job.world_size, job.world

    def report(text):
        if rank == 0:
            print(text)

    # Collectives work on arrays in place, and return them.
    report(f"sum of the ranks: {world.all_reduce(np.array([rank]))[0]}")
    rows = world.all_gather(np.array([rank, rank**2], float), out=np.empty((size, 2)))
    report(f"everybody's row: {rows.tolist()}")

    # Groups are made by colour, or by a list of ranks; here of the even and the odd ranks.
    half = world.split(rank % 2)
    report(f"largest among {half.ranks}: {half.all_reduce(np.array([rank]), op='max')[0]}")

    # Messages are sent to a neighbour, and received from one.
    before, after = (rank - 1) % size, (rank + 1) % size
    world.send(np.full(3, rank), after)
    inbox = np.empty(3, int)
    world.recv(inbox, before)
    report(f"rank {before} sent {inbox.tolist()}")

    # Streams run operations in the background, one after the other.
    stream = ouro.Stream()
    work = world.all_reduce(np.ones(1 << 16), stream=stream)
    mean = np.mean(np.arange(1000))  # meanwhile
    work.wait()

    # A wrong argument is refused immediately, and the group remains usable. Calls that differ between the
    # ranks are a MismatchError on all of them, and end the group.
    try:
        world.all_reduce(np.zeros(4), op="no such")
    except ValueError as mistake:
        report(f"refused: {mistake}")

    # Training: each rank pulls x to its own target, and averages with a neighbour in each step.
    x, target = np.zeros(3), np.full(3, float(rank))
    trainer = train.GossipTrainer(world, [("x", x, True)], [], train.Topology("ring", size), train.sgd(0.1), params_in_bucket=False)
    for _ in range(100):
        trainer.begin_step()
        trainer.grad_ready(0, x - target)
        trainer.end_backward()
    trainer.global_average(keep=True)
    assert np.allclose(x, (size - 1) / 2, atol=1e-3), x
    report(f"the mean of all targets: {x[0]:.3f}")
    trainer.close()
