# The points of a measurement, their order, and the points in which a setting takes part.
# Used by command.py and judge.py.
import dataclasses

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)
QUICK_SIZES = SIZES[:-1]  # verifying 128 MiB alone takes longer than a quick run may
SWEEP = tuple(8 << i for i in range(26))  # 8 B .. 256 MiB
BUFFERS = ("private", "registered", "private-4k")
METHODS = ("A", "B", "C")
DTYPES = ("float32", "bfloat16")
ELEMENT = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """One call to compare; with a class of buffers it is a row."""

    collective: str
    ranks: int
    bytes: int  # as nccl-tests counts: all_gather and reduce_scatter, the whole buffer
    dtype: str
    method: str
    in_place: bool


def places(collective):
    """In place and out of place, where both exist. MPI broadcasts in place, and so do all peers here."""
    return {"all_reduce": (False, True), "broadcast": (True,)}.get(collective, (False,))


def keys(ranks, collectives, sizes, dtypes, methods):
    """All points, but bfloat16 in method A only: its only peer, Gloo, is hundreds of times slower in any method."""
    return [Key(c, ranks, b, d, m, p) for c in collectives for p in places(c) for b in sizes for d in dtypes for m in methods
            if d == "float32" or m == "A"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A point of one launch, and the line that its program reads."""

    key: Key
    buffer: str
    line: str


def tasks(setting, wanted, buffers):
    """The points of one launch of a setting."""
    found = []
    for key in wanted:
        kinds = ["private"]
        if setting.name in ("ouro", "other"):
            kinds = [b for b in ("private", "registered") if b in buffers]
        elif setting.name == "ouro-4k":
            kinds = kinds if key.dtype == "float32" and "private-4k" in buffers else []
        elif setting.family == "bare":
            fits = key.collective == "all_reduce" or not setting.algorithm.endswith("-two")
            large = key.bytes > 4096 or setting.algorithm in ("rep", "plain", "rep-two")
            able = ("private",) if setting.algorithm.endswith("-ring") else ("private", "registered")
            kinds = [b for b in able if b in buffers and key.dtype == "float32" and fits and large]
        elif setting.family == "gloo":
            mine = (key.collective == "all_reduce") == bool(setting.algorithm)
            kinds = kinds if mine and key.method == "A" else []
        elif key.dtype != "float32":
            kinds = []  # MPI has no bfloat16
        place = "in" if key.in_place else "out"
        for buffer in kinds:
            words = (key.collective, key.bytes, key.dtype, buffer, key.method, place, setting.algorithm)
            found.append(Task(key, buffer, " ".join(map(str, words)).rstrip()))
    return found
