"""How jobs end other than well: Ctrl-C, fork, a program that does not close, a dead rank, a late one. Each program has ranks
of its own, and a bound on its time. Usage: endings_test.py [NAME RANKS SCRATCH]"""
import os
import signal
import subprocess
import sys
import time

import needs
import numpy as np
from needs import raises

import ouro

HANG = 30


def ctrl_c():
    """A rank that waits for another one is interrupted: it raises KeyboardInterrupt soon, and the
    other rank gets an error."""
    job = ouro.init()
    world, x = job.world, np.zeros(10)
    if job.rank == 0:
        world.barrier()
        world.send(np.array([os.getpid()]), 1)
        try:
            world.all_reduce(x)
        except KeyboardInterrupt:
            took = time.time() - float(np.fromfile(sys.argv[3])[0])
            assert took < HANG, took
            print(f"interrupted within {took:.2f} s")
            error = raises(ouro.AbortedError, ["signal"], world.check)
            assert error.reason == "revoked" and world.failed
            return
        raise AssertionError("not interrupted")
    world.barrier()
    pid = np.zeros(1, np.int64)
    world.recv(pid, 0)
    time.sleep(0.3)  # by now it waits in the all_reduce
    np.array([time.time()]).tofile(sys.argv[3])
    os.kill(int(pid[0]), signal.SIGINT)
    # The other rank's wait ends without this rank.
    end = time.monotonic() + HANG
    while not world.failed and time.monotonic() < end:
        time.sleep(0.01)
        world.probe(0) if not world.failed else None
    error = raises(ouro.Error, ["signal"], lambda: world.all_reduce(x))
    assert error.reason == "revoked", error.reason


def ctrl_c_and_failure():
    """A signal arrives between the last check for signals and a failure: its KeyboardInterrupt is
    raised, and nothing else."""
    def handler(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    for _ in range(3):
        world = ouro.threads(2)[0].world  # on a busy machine the wait may notice the signal, which ends the group
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            world.recv(np.zeros(1), 1, timeout=0.07)  # it checks ten times a second
        except KeyboardInterrupt:
            continue
        raise AssertionError("not interrupted")


def handler_goes_on():
    """A handler that raises nothing does not end the wait, and runs during it."""
    job = ouro.init()
    world, seen = job.world, []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.time()))
    pids = np.zeros(2, np.int64)
    world.all_gather(np.array([os.getpid()]), pids)
    if job.rank == 0:
        world.barrier()
        ended = time.time()
        assert seen and seen[0] < ended
    else:
        time.sleep(0.1)
        os.kill(int(pids[0]), signal.SIGUSR1)
        time.sleep(0.5)
        world.barrier()
    assert world.all_reduce(np.ones(1))[0] == 2
    job.close()


def ctrl_c_elsewhere():
    """Waits for a stream, for a message, and for ranks that do not join are interrupted, too."""
    def interrupted(call):
        main = os.getpid()
        child = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.3); os.kill({main}, 2)"])
        begin = time.monotonic()
        try:
            call()
        except KeyboardInterrupt:
            child.wait()
            return time.monotonic() - begin
        raise AssertionError("not interrupted")

    ranks = ouro.threads(2)
    world, stream = ranks[0].world, ouro.Stream()
    x = np.zeros(3)
    work = world.all_reduce(x, stream=stream)
    for wait in (work.wait, stream.synchronize):
        assert interrupted(wait) < HANG
    assert not world.failed
    ranks[1].world.all_reduce(np.ones(3))
    work.wait()
    assert x[0] == 1 and not world.failed
    assert interrupted(lambda: world.recv(x, 1)) < HANG
    assert world.failed
    assert interrupted(lambda: ouro.init(0, 2, id=ouro.unique_id())) < HANG


def fork():
    """A child of fork() gets an error with a message; the parent continues, and so does a child
    that joins anew."""
    job = ouro.init()
    job.world.all_reduce(np.ones(1))
    child = os.fork()
    if child == 0:
        try:
            error = raises(ouro.ForkedError, ["fork"], lambda: job.world.all_reduce(np.ones(1)))
            assert error.reason == "forked"
            raises(ouro.ForkedError, ["fork"], lambda: job.group([0]))
            assert ouro.init(0, 1, id=ouro.unique_id()).world.all_reduce(np.ones(1))[0] == 1
            sys.exit(0)
        except SystemExit as end:
            os._exit(end.code)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert job.world.all_reduce(np.ones(1))[0] == job.world_size
    # Python's usual way, as in data loaders: the child's interpreter ends while it has the
    # parent's objects.
    import multiprocessing
    worker = multiprocessing.get_context("fork").Process(target=int)
    worker.start()
    worker.join(HANG)
    assert worker.exitcode == 0, worker.exitcode
    job.close()


def no_close():
    """The interpreter ends while everything is in use: contexts, groups, a stream, operations of
    which one never ends."""
    job = ouro.init()
    stream = ouro.Stream()
    job.world.all_reduce(np.ones(1000))
    shared = job.alloc((10,))  # noqa: F841
    work = job.world.all_reduce(np.ones(1 << 16), stream=stream)
    global kept
    kept = [job, stream, work, job.world, ouro.Event(), job.world.split(0)]
    work.wait()
    ranks = ouro.threads(2)
    kept += [ranks, ranks[0].world.all_reduce(np.ones(3), stream=ouro.Stream())]


def exception():
    """A rank whose block raises leaves the job; the others are told at once which rank and why."""
    try:
        with ouro.init() as job:
            if job.rank == 1:
                raise KeyError("of the program")
            error = raises(ouro.Error, ["rank 1", "KeyError"], lambda: job.world.all_reduce(np.ones(1)))
            assert error.reason == "revoked", error
    except KeyError:
        assert job.rank == 1 and not job.active


def dead():
    """A rank that dies is named, and the others continue without it."""
    job = ouro.init()
    job.world.barrier()
    if job.rank == 1:
        os._exit(0)
    error = raises(ouro.PeerLostError, ["rank 1"], lambda: job.world.all_reduce(np.ones(1)))
    assert error.reason == "peer-dead" and error.code == "peer-lost" and error.rank == 1 and 1 in error.ranks
    assert isinstance(error, ConnectionError) and error.op == "all_reduce" and error.group and error.pid
    import pickle
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and copy.ranks == error.ranks and str(copy) == str(error)
    world, gone, _ = job.world.shrink()
    assert gone == [1] and world.size == 2 and world.generation == 1
    assert world.all_reduce(np.ones(1))[0] == 2


def late():
    """A deadline names the late rank; a mismatch names both sides."""
    job = ouro.init(deadline=0.3)
    if job.rank == 0:
        error = raises(ouro.DeadlineError, ["rank 1"], lambda: job.world.all_reduce(np.ones(1)))
        assert error.reason == "deadline" and error.ranks == (1,) and error.elapsed >= 0.3
    else:
        end = time.monotonic() + HANG
        while time.monotonic() < end and not job.world.failed:
            time.sleep(0.01)
            try:
                job.world.probe(0)
            except ouro.Error:
                break
    other = ouro.threads(2)
    import threading
    t = threading.Thread(target=lambda: raises(ouro.MismatchError, [], lambda: other[1].world.all_reduce(np.ones(2))))
    t.start()
    raises(ouro.MismatchError, ["all_reduce"], lambda: other[0].world.all_reduce(np.ones(1)))
    t.join(HANG)


PROGRAMS = {ctrl_c: 2, ctrl_c_and_failure: 1, handler_goes_on: 2, ctrl_c_elsewhere: 1, fork: 2, no_close: 2, exception: 2, dead: 3,
            late: 2}


def main():
    import tempfile
    launcher = ouro._where.program("ouro-run")
    with tempfile.NamedTemporaryFile() as scratch:
        jobs = [(p, subprocess.Popen([launcher, "-n", str(ranks), "--timeout", str(2 * HANG), sys.executable, __file__, p.__name__,
                                      str(ranks), scratch.name],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True))
                for p, ranks in PROGRAMS.items()]
        failed = []
        for program, job in jobs:
            out = job.communicate()[0]
            if job.returncode != 0:
                failed.append(program.__name__)
                print(f"{program.__name__}: exit code {job.returncode}\n{out}")
            else:
                print(f"{program.__name__}: passed {out.strip()}")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if len(sys.argv) > 1:
    {p.__name__: p for p in PROGRAMS}[sys.argv[1]]()
else:
    main()
