"""How the ranks of a process group find each other: through PyTorch's store, which carries the name and secret of ouro's job.

Everyone who can read the store can join. Between hosts, the ranks then meet at a port of rank 0's host, which rank 0 chooses.
"""
import datetime
import hashlib
import json
import os
import socket
import time

import torch
import torch.distributed as dist

from ouro.torch import build

_PAUSES = (0.001, 0.05)  # seconds between polls of the store: the first, and the longest
_FOREVER = datetime.timedelta(days=365)


def _host():
    """The same text for ranks that share memory: OURO_HOSTID, or else this machine's boot id and network namespace."""
    if named := os.environ.get("OURO_HOSTID"):
        return named
    with open("/proc/sys/kernel/random/boot_id") as f:
        text = f"{f.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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


def _wait(store, key):
    """Polls, so that signal handlers run in between and Ctrl-C works. Store.wait cannot be split: its errors differ by store."""
    end = time.monotonic() + store.timeout.total_seconds()
    pause, longest = _PAUSES
    while not store.check([key]):
        if time.monotonic() > end:
            raise RuntimeError(f"waited for {store.timeout}")
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _get(store, key, size):
    """The value of a key, once it is in the store; after the timeout, raises an error that names the missing ranks."""
    try:
        _wait(store, key)
        return store.get(key)
    except Exception as e:
        try:
            missing = [r for r in range(size) if not store.check([f"ouro/host/{r}"])]
        except Exception:  # noqa: BLE001
            raise e from None  # the store itself is gone
        late = f"ranks {missing} of {size} have not come" if missing else "rank 0 has not said where to meet"
        raise RuntimeError(f"ouro.torch: the ranks do not come together: {late} ({e})") from e


def _meet(adapter, store, rank, size):
    """What all ranks must know: the id, the ranks' hosts, where the hosts meet; and a socket to keep until they have met."""
    store.set(f"ouro/host/{rank}", _host())
    kept = None
    if rank == 0:
        hosts = [_get(store, f"ouro/host/{r}", size).decode() for r in range(size)]
        place = ""
        if len(set(hosts)) > 1:
            kept, place = _keep_port(store)
        store.set("ouro/meeting", json.dumps({"id": adapter.new_id().hex(), "hosts": hosts, "place": place}))
    return json.loads(_get(store, "ouro/meeting", size)), kept


def _gpu():
    """The current GPU, if PyTorch uses one; else None: ouro then chooses one by the local rank."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def create(options, backend_options, name):
    """PyTorch's creator of a backend: returns a c10d Backend for the options of init_process_group or new_group."""
    adapter = build.adapter()
    rank, size = options.group_rank, options.group_size
    timeout = getattr(backend_options, "_timeout", None) or options.timeout or _FOREVER
    meeting, kept = _meet(adapter, options.store, rank, size)
    hosts = meeting["hosts"]
    here = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    one = len(here) == size
    try:
        return adapter.join(id=bytes.fromhex(meeting["id"]), rank=rank, size=size, local_rank=here.index(rank), local_size=len(here),
                            gpu=_gpu(), host="" if one else hosts[rank], rendezvous=meeting["place"],
                            timeout_ms=int(timeout.total_seconds() * 1000), group=options.group_id or "", name=name)
    finally:
        if kept:
            kept.close()
