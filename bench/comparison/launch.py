# Starts the processes of one launch, reads their lines, and ends all that are left of them, by id.
# Used by command.py.
import ctypes
import json
import os
import pathlib
import selectors
import signal
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)
STALL_S = 60  # without a line: the slowest point takes a few seconds


def adopt_orphans():
    """Makes this process a subreaper: grandchildren whose parent ends become its children, to be found and ended."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def children():
    """Processes whose parent is this one: all started here, directly or not."""
    me, found = os.getpid(), []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if int(fields[1]) == me:
                found.append(int(entry.name))
    return found


def _signal_groups(processes, number):
    for p in processes:
        if p.poll() is None:
            try:
                os.killpg(p.pid, number)  # each is the leader of its own session and group
            except ProcessLookupError:
                pass


def _end(processes):
    _signal_groups(processes, signal.SIGTERM)
    until = time.monotonic() + 2
    while any(p.poll() is None for p in processes) and time.monotonic() < until:
        time.sleep(0.01)
    _signal_groups(processes, signal.SIGKILL)
    for p in processes:
        p.wait()
    for _ in range(100):  # ranks of a launcher that has ended
        left = children()
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        time.sleep(0.01)


def run(make_commands, environment, lines, seconds, on_point):
    """One launch over the points in `lines`. make_commands(arguments) gives its processes; on_point(dict) is called
    for each JSON line. Returns an error text, or None."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # keeps the pages of the shared mapping off the disk
    with tempfile.TemporaryDirectory(prefix="compare-", dir=base) as directory:
        place = pathlib.Path(directory)
        (place / "points").write_text("\n".join(lines) + "\n")
        arguments = ["--points", str(place / "points"), "--directory", directory, "--seconds", str(int(seconds) + 5)]
        processes = []
        with (place / "errors").open("w+") as errors, selectors.DefaultSelector() as ready:
            why = None
            try:
                for command in make_commands(arguments):
                    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                         env=environment, start_new_session=True, preexec_fn=_die_with_parent)
                    processes.append(p)
                    ready.register(p.stdout, selectors.EVENT_READ, bytearray())
                why = _read(processes, ready, time.monotonic() + seconds, on_point)
                if why is None:
                    codes = [p.wait(timeout=20) for p in processes]
                    why = None if not any(codes) else f"exit codes {codes}"
            except subprocess.TimeoutExpired:
                why = "did not end after its last point"
            finally:
                _end(processes)
                for p in processes:
                    p.stdout.close()
            errors.seek(0)
            said = [line.strip() for line in errors.read().splitlines() if line.strip()]
            return why and (f"{why}; " + " / ".join(said[:3]) if said else why)


def _read(processes, ready, deadline, on_point):
    last = time.monotonic()
    while ready.get_map():
        now = time.monotonic()
        if now > deadline:
            return "deadline of the launch passed"
        if now - last > STALL_S:
            return f"no point within {STALL_S} s"
        if any(p.poll() not in (None, 0) for p in processes):
            # A rank failed, and its peers would wait for it. Earlier output is already in the pipe.
            deadline = min(deadline, now + 1)
        for key, _ in ready.select(timeout=0.5):
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                ready.unregister(key.fileobj)
                continue
            last = time.monotonic()
            key.data.extend(chunk)
            while b"\n" in key.data:
                line, _, rest = bytes(key.data).partition(b"\n")
                key.data[:] = rest
                if line.startswith(b"{"):
                    on_point(json.loads(line))
    return None
