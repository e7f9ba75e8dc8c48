# Limits of the machine: least bytes through memory, or the coherence bound, divided by bandwidths probed in the same run.
# Used by judge.py; tested in tests/bench.
from comparison import points


def payload(key):
    """S: bytes of one rank's buffer (all_reduce, broadcast), own part (all_gather), whole input (the others)."""
    element = points.ELEMENT[key.dtype]
    if key.collective in ("all_reduce", "broadcast"):
        return max(element, key.bytes // element * element)
    part = max(element, key.bytes // element // key.ranks * element)
    return part if key.collective == "all_gather" else part * key.ranks


def memory_bytes(key):
    """(reads, writes) that must cross the memory, non-temporal stores, each line touched once."""
    s, n = payload(key), key.ranks
    return {
        "all_reduce": (n * s, n * s),
        "broadcast": (s, (n - 1) * s),
        "all_gather": (n * s, n * n * s),
        "reduce_scatter": (n * s, s),
        "all_to_all": (n * s, n * s),
    }[key.collective]


def mix(key):
    """The probe whose mix of reads and writes is closest to that of the operation."""
    if key.collective == "all_reduce" and key.in_place:
        return "in_place_gbs"
    return {"reduce_scatter": "sum_gbs", "all_gather": "spread_gbs"}.get(key.collective, "copy_gbs")


def from_memory(key, l3):
    """Whether the buffers of all ranks fill the last cache."""
    s = payload(key)
    whole = s * key.ranks if key.collective == "all_gather" else s
    return whole * key.ranks >= l3


def _coherence_us(key, buffer, probe):
    """Bytes that pass between the caches of two cores, with a core for each rank."""
    s, n, h = payload(key), key.ranks, probe["handoff_ns"] / 1000
    copy_in, read, store = (probe[k] * 1000 for k in ("copy_in_gbs", "read_peer_gbs", "store_gbs"))  # bytes a us
    others = (n - 1) / n * s
    if buffer == "registered":
        if key.collective == "all_reduce":  # each rank reads its slice of the others and stores it to them
            return min(2 * h + others / read + others / store, h + (n - 1) * s / read)
        return h + {"broadcast": s, "all_gather": (n - 1) * s}.get(key.collective, others) / read
    return {
        "all_reduce": min(h + s / copy_in + (n - 1) * s / read, 2 * h + s / copy_in + 2 * others / read),
        "broadcast": h + s / copy_in + s / read,
        "all_gather": h + s / copy_in + (n - 1) * s / read,
        "reduce_scatter": h + others / copy_in + others / read,
        "all_to_all": h + others / copy_in + others / read,
    }[key.collective]


def floor_us(key, buffer, probe, cores, l3):
    """Least time, or None where no bound is known: in the caches with more ranks than cores."""
    if not probe or not probe.get("copy_gbs"):
        return None
    if from_memory(key, l3):
        return sum(memory_bytes(key)) / (probe[mix(key)] * 1000)
    return None if key.ranks > cores else _coherence_us(key, buffer, probe)
