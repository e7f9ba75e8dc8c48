# Imports PyTorch once, which takes seconds of processor time, and forks a process for each rank of a test. Reads a line
# of JSON for each run from standard input, and answers with one. Started by torch_ranks.py.
import json
import os
import signal
import sys
import time

import torch  # noqa: F401
import torch.distributed  # noqa: F401  (neither starts a thread or uses a device)


def become(script, arguments, output):
    """Gives the process of a rank what it would find if it had been started as a program of its own."""
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for taken, number in (null, 0), (out, 1), (out, 2):
        os.dup2(taken, number)
    os.close(null)
    os.close(out)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)


def exit_codes(pids, seconds):
    """The exit codes of the ranks, in order, and whether all have ended in time. The others are killed."""
    codes, end, in_time = {}, time.monotonic() + seconds, True
    while len(codes) < len(pids):
        for pid in (p for p in pids if p not in codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                in_time = False
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return {"codes": [codes[pid] for pid in pids], "in time": in_time}


def serve():
    """Serves runs until there are no more. Returns in the process of a rank only, with the name of its program."""
    for line in sys.stdin:
        script, ranks, seconds = json.loads(line)
        pids = []
        for arguments, output in ranks:
            pid = os.fork()
            if pid == 0:
                become(script, arguments, output)
                return script
            pids.append(pid)
        print(json.dumps(exit_codes(pids, seconds)), flush=True)
    sys.exit()


__file__ = serve()
exec(compile(open(__file__).read(), __file__, "exec"))  # as the module __main__, which this one is
