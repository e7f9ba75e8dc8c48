"""ouro: collectives, messages, process groups, streams, and the trainers that use them.

    import numpy, ouro

    with ouro.init() as job:                       # the launcher's variables; one rank without a launcher
        x = numpy.full(1000, job.rank, numpy.float32)
        print(job.world.all_reduce(x)[0])

The compiled part is loaded when something of it is first used, so that `import ouro` and `import ouro.torch` need no more
than Python.
"""
from ouro._where import include, includes, library, version

__version__ = version()

_OWN = ["include", "includes", "library", "version"]
