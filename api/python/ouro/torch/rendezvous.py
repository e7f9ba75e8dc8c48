"""How the ranks of a process group find each other: through PyTorch's store, which carries the name and secret of ouro's job.

Everyone who can read the store can join. Between hosts, the ranks then meet at a port of rank 0's host, which rank 0 chooses.
"""
import contextlib
import datetime
import hashlib
import json
import os
import secrets
import socket
import time

import torch
import torch.distributed as dist

from ouro.torch import build

_PAUSES = (0.001, 0.05)  # seconds between polls of the store: the first, and the longest, for up to 256 ranks
_CHECK_EVERY = 0.5  # seconds between two checks of the other ranks while this one joins
_FOREVER = datetime.timedelta(days=365)
_processes = {}  # global rank: the process of that rank, as of the last group that it has joined together with this one


def _host():
    """The same text for ranks that share memory: OURO_HOSTID, or else this machine's boot id and network namespace; without /proc
    its name."""
    if named := os.environ.get("OURO_HOSTID"):
        return named
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            text = f"{f.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        text = socket.gethostname()
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _born(pid):
    """The time at which a process of this PID namespace began, in ticks; "": it has ended, and nobody has waited for it."""
    with open(f"/proc/{pid}/stat") as f:
        state, *fields = f.read().rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def _this_process():
    """The facts of this process that _has_ended needs. Its number means nothing to others if /proc is of another PID namespace."""
    pid = os.getpid()
    try:
        if os.readlink("/proc/self") != str(pid):
            return None
    except OSError:
        return None
    return [_host(), os.stat("/proc/self/ns/pid").st_ino, pid, _born(pid)]


def _has_ended(process, this):
    """Whether a process is known to have ended; `this` is that of the caller. Those of other PID namespaces are not known."""
    if not process or not this or process[:2] != this[:2]:
        return False
    try:
        os.kill(process[2], 0)
        return _born(process[2]) != process[3]
    except ProcessLookupError:
        return True
    except OSError:
        return False


def _lives(process, this):
    """Whether a process is known to be there."""
    return bool(process and this and process[:2] == this[:2]) and not _has_ended(process, this)


def _ended(processes):
    """Names a rank whose process is known to have ended, for processes by rank; "": there is none."""
    this = _this_process()
    return next((f"rank {r} has not joined, and its process ({process[2]} on this host) has ended"
                 for r, process in processes.items() if _has_ended(process, this)), "")


def _loopback(address):
    return address.startswith("127.") or address == "::1"


def _address(store):
    """The address by which others reach this host: the local address of a route to the store's host, or to its own host name."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    candidates = [getattr(store, "host", None), socket.gethostname()]
    for host in filter(None, candidates):
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as s:
                s.connect(place)  # sends nothing
                own = s.getsockname()[0]
        except OSError:
            continue
        if not _loopback(own):
            return family, own
    raise RuntimeError("ouro.torch: rank 0 knows no address of its host that other hosts can reach; OURO_RENDEZVOUS=ADDRESS:PORT names one")


def _named():
    """Addresses for the host that OURO_RENDEZVOUS names; omits loopback addresses unless the variable itself has the address."""
    place = os.environ.get("OURO_RENDEZVOUS", "")
    host = place.rpartition(":")[0].strip("[]")
    if not host or place.startswith("file:"):
        return
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return
    for family, _, _, _, (address, *_) in found:
        if address == host or not _loopback(address):
            yield family, address


def _bind(family, address):
    kept = socket.socket(family, socket.SOCK_STREAM)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((address, 0))
    except OSError:
        kept.close()
        raise
    return kept


def _keep_port(store):
    """Reserves a port: bound, but not listening, until ouro listens there. It is at the address of OURO_RENDEZVOUS if that belongs
    to this host. The port of OURO_RENDEZVOUS itself is not used, because only one group could have it."""
    for family, address in _named():
        try:
            kept = _bind(family, address)
            break
        except OSError:
            continue  # it belongs to another host
    else:
        kept = _bind(*_address(store))
    address, port = kept.getsockname()[:2]
    return kept, f"[{address}]:{port}" if kept.family == socket.AF_INET6 else f"{address}:{port}"


class Meeting:
    """Brings the ranks of a group together. A store may hold what an earlier group of its name has left, or a job that was killed,
    so each attempt has a random name. Keys, below "ouro/":

    call            rank 0's attempt, and who it is; null once all have joined
    host/R          rank R's answer: the attempt that it has seen, a name of its own attempt, its host, process and group
    meeting/CALL    rank 0's conclusion: the names that it has seen, and what all must know
    failed/CALL     the first failure: the others end, too

    Rank 0 takes answers to its own call only, and a rank takes a conclusion only if that has its own name in it: so both are of
    ranks that are in this attempt now. No rank waits for a key that may be removed, except one that it has just seen.
    """

    def __init__(self, store, rank, size, timeout, members=None, cannot_join=lambda: ""):
        """`members`: the global ranks of the group, by which errors name them. `cannot_join`: says why a rank cannot join, or ""."""
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._members, self._cannot_join = members or list(range(size)), cannot_join
        self._end = time.monotonic() + timeout.total_seconds()
        self._call, self._seen, self._said = "", [], ""  # `seen`: this rank's call and others; ranks 0 that must be notified of a failure
        self._next_check = 0.0
        self._kept = self._caller = None
        self.processes = {}  # by global rank, of the ranks that have arrived

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self._kept:
            self._kept.close()
        first = ""
        with contextlib.suppress(Exception):  # the store may have ended, which is no failure now
            if error is None and self._rank == 0:
                self._store.set("ouro/call", "null")
                for key in (f"ouro/meeting/{self._call}", *(f"ouro/host/{r}" for r in range(1, self._size))):
                    self._store.delete_key(key)
            elif error is not None:
                first = self._failed(self._call) if self._call else ""
                own = first or self._said or f"rank {self._members[self._rank]} did not join: {str(error) or kind.__name__}"
                for call in self._seen:  # a rank 0 of another group, too, that waits for this rank
                    if not self._failed(call):
                        self._store.set(f"ouro/failed/{call}", own)
        if first and not self._said and isinstance(error, Exception):  # what ouro says of this is a consequence
            self._fail(first)

    def left(self):
        """Milliseconds until all ranks must have joined; at least one."""
        return max(1, int((self._end - time.monotonic()) * 1000))

    def meet(self, new_id):
        """What all ranks must know: the id, and the host of each, and the place where hosts meet."""
        return self._invite(new_id) if self._rank == 0 else self._follow()

    def check(self):
        """Raises if a rank that is to join has failed or ended. Called while this rank joins; asks every half a second."""
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + _CHECK_EVERY
        failed = ""
        with contextlib.suppress(Exception):  # the store may have ended, with a rank that served it and has joined and left
            failed = self._failed(self._call)
        if failed := failed or _ended(self.processes):
            self._fail(failed)

    def _fail(self, text):
        self._said = text
        raise RuntimeError(f"ouro.torch: the ranks do not meet: {text}")

    def _failed(self, call):
        """Why rank 0's attempt has failed, as the first one to notice has said; "": it has not."""
        key = f"ouro/failed/{call}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _check_members(self, rank, members):
        """That another rank, a global one, makes the group of the same ranks."""
        if members != self._members:
            self._fail(f"rank {self._members[self._rank]} makes a group of ranks {self._members}, where rank {rank} makes one of ranks "
                       f"{members}; all ranks must make the same groups, in the same order")

    def _wait(self, ready, late):
        """Polls, so that signal handlers run in between and Ctrl-C works, and failures of other ranks are seen. `late`: says who
        has not arrived. Store.wait could not be split: its errors differ by store."""
        pause, longest = _PAUSES[0], _PAUSES[1] * max(1, self._size / 256)
        next_check = 0.0
        while not ready():
            if self._call and (failed := self._failed(self._call)):
                self._fail(failed)
            if time.monotonic() > next_check:
                if reason := _ended(self.processes) or self._cannot_join():
                    self._fail(reason)
                next_check = time.monotonic() + _CHECK_EVERY
            if time.monotonic() > self._end:
                self._fail(f"{late()} (waited for {self._timeout})")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _value(self, key):
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _invite(self, new_id):
        own = self._answer()
        answers, self._call = {0: own}, own["own"]
        self._seen.append(self._call)
        self._store.set("ouro/call", json.dumps(own))

        def answered(rank):
            if (call := json.loads(self._store.get("ouro/call"))) != own:
                if call and call["members"] != self._members:
                    self._seen.append(call["own"])
                    self._check_members(call["global"], call["members"])
                self._fail(f"another process calls itself rank {self._members[0]} of the group of ranks {self._members}, later than this one")
            answer = self._value(f"ouro/host/{rank}")
            if answer is None or answer["call"] != self._call:
                return False
            self._check_members(answer["global"], answer["members"])
            answers[rank], self.processes[self._members[rank]] = answer, answer["process"]
            return True

        def late():
            missing = [self._members[r] for r in range(self._size) if r not in answers and not answered(r)]
            return f"ranks {missing} of {self._size} have not arrived"

        for rank in range(1, self._size):
            self._wait(lambda: answered(rank), late)
        hosts = [answers[r]["host"] for r in range(self._size)]
        place = ""
        if len(set(hosts)) > 1:
            self._kept, place = _keep_port(self._store)
        meeting = {"id": new_id().hex(), "hosts": hosts, "place": place, "members": self._members,
                   "own": [answers[r]["own"] for r in range(self._size)], "processes": [answers[r]["process"] for r in range(self._size)]}
        self._store.set(f"ouro/meeting/{self._call}", json.dumps(meeting))
        return self._met(meeting)

    def _follow(self):
        mine, met = self._answer(), None

        def met_or_answered():
            nonlocal met
            caller = self._value("ouro/call")
            if not caller:
                return False
            call = caller["own"]
            concluded = self._store.check([f"ouro/meeting/{call}"])
            if call == self._call and concluded:
                met = self._value(f"ouro/meeting/{call}")
                self._check_members(met["members"][0], met["members"])
                return met["own"][self._rank] == mine["own"]  # else it is of a process that was this rank before
            if call != self._call and not concluded:
                if self._store.check([f"ouro/failed/{call}"]):  # it is over; of a job that has ended it says nothing
                    if _lives(caller["process"], mine["process"]):
                        self._check_members(caller["global"], caller["members"])
                    return False
                self._call, self._caller = call, caller
                self._seen.append(call)
                self._store.set(f"ouro/host/{self._rank}", json.dumps({**mine, "call": call}))
            return False

        def late():
            if self._caller and self._caller["members"] != self._members:
                self._check_members(self._caller["global"], self._caller["members"])
            return f"rank {self._members[0]} has not said where to meet"

        self._wait(met_or_answered, late)
        return self._met(met)

    def _answer(self):
        """What this rank says of itself in this attempt."""
        return {"own": secrets.token_hex(8), "host": _host(), "process": _this_process(), "members": self._members,
                "global": self._members[self._rank]}

    def _met(self, meeting):
        self.processes = dict(zip(self._members, meeting["processes"]))
        return meeting


def _gpu():
    """The current GPU, if PyTorch uses one; else None: ouro then chooses one by the local rank."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _cannot_join(adapter, members):
    """Names a rank that cannot join a new group: its process has ended, or the default group, if ouro carries it, has lost it.
    `members`: empty for the default group itself."""
    if not members or not dist.is_initialized():
        return ""
    if gone := _ended({r: _processes[r] for r in members if r in _processes}):
        return gone
    for backend in {dist.group.WORLD._get_backend(device) for device in dist.group.WORLD._device_types}:
        text, lost = adapter.lost(getattr(backend, "wrapped_pg", backend))
        if set(lost) & set(members):
            return f"rank {min(set(lost) & set(members))} is lost ({text})"
    return ""


def create(options, backend_options, name):
    """PyTorch's creator of a backend: returns a c10d Backend for the options of init_process_group or new_group."""
    adapter = build.adapter()
    rank, size = options.group_rank, options.group_size
    timeout = getattr(backend_options, "_timeout", None) or options.timeout or _FOREVER
    members = list(getattr(options, "global_ranks_in_group", None) or [])
    if not dist.is_initialized():
        _processes.clear()  # the ranks of another job have the same numbers
    with Meeting(options.store, rank, size, timeout, members, lambda: _cannot_join(adapter, members)) as meeting:
        met = meeting.meet(adapter.new_id)
        hosts = met["hosts"]
        here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
        one = len(here) == size
        backend = adapter.join(id=bytes.fromhex(met["id"]), rank=rank, size=size, local_rank=here.index(rank), local_size=len(here),
                               gpu=_gpu(), host="" if one else hosts[rank], rendezvous=met["place"],
                               timeout_ms=int(timeout.total_seconds() * 1000), join_ms=meeting.left(), check=meeting.check,
                               group=options.group_id or "", name=name)
    if members or not dist.is_initialized():  # else the group is of ranks whose numbers in the job are not known
        _processes.update(meeting.processes)
    return backend
