# The libraries under comparison and how each is started: data, and the command line of one launch.
# Used by command.py.
import dataclasses
import pathlib

# Freed temporaries stay mapped and the heap uses 2 MiB pages: otherwise a peer pays page faults in each large call.
KEEP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NO_CMA = ("--mca", "btl_vader_single_copy_mechanism", "none")
UCX = ("--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "opal_common_ucx_tls", "any",
       "--mca", "opal_common_ucx_devices", "any")
SM = ("--mca", "coll_sm_priority", "95")
POSIX = ("-genv", "UCX_TLS", "self,posix,sysv")


@dataclasses.dataclass(frozen=True)
class Setting:
    name: str
    family: str  # ouro, ompi, mpich, gloo, bare: the program compare_<family>
    keep: bool
    arguments: tuple = ()
    crowded: bool = True  # whether it may have more ranks than cores
    algorithm: str = ""  # Gloo: of its all-reduce; bare: kind of copy, -two for two phases, -ring for a staging ring
    quick: bool = False


SETTINGS = (
    Setting("ouro", "ouro", True, quick=True),
    Setting("ouro-4k", "ouro", False),
    Setting("ompi", "ompi", False),
    Setting("ompi-nocma", "ompi", False, NO_CMA),
    Setting("ompi-sm", "ompi", False, NO_CMA + SM, crowded=False),
    Setting("ompi-sm-tuned", "ompi", True, NO_CMA + SM, crowded=False, quick=True),
    Setting("ompi-ucx", "ompi", False, UCX, quick=True),
    Setting("ompi-tuned", "ompi", True, NO_CMA, quick=True),
    Setting("ompi-tuned-cma", "ompi", True, quick=True),
    # MPICH never yields: with more ranks than cores a call takes milliseconds.
    Setting("mpich", "mpich", False, crowded=False),
    Setting("mpich-posix", "mpich", False, POSIX, crowded=False),
    Setting("mpich-tuned", "mpich", True, POSIX, crowded=False, quick=True),
    # Each of Gloo's all-reduces has a launch of its own: after the older ones the newer ring takes 50 times as long, or hangs.
    Setting("gloo-ring", "gloo", True, algorithm="ring"),
    Setting("gloo-ring-chunked", "gloo", True, algorithm="ring-chunked"),
    Setting("gloo-halving-doubling", "gloo", True, algorithm="halving-doubling", quick=True),
    Setting("gloo-bcube", "gloo", True, algorithm="bcube", quick=True),
    Setting("gloo", "gloo", True, quick=True),  # everything but all-reduce
    # A program with shared memory alone: a limit, not a peer. The fastest of its ways counts.
    Setting("bare-rep", "bare", True, algorithm="rep", quick=True),
    Setting("bare-rep-ring", "bare", True, algorithm="rep-ring", quick=True),
    Setting("bare-rep-two", "bare", True, algorithm="rep-two", quick=True),
    Setting("bare-plain", "bare", True, algorithm="plain", quick=True),
    Setting("bare-stream", "bare", True, algorithm="stream", quick=True),
    Setting("bare-stream-two", "bare", True, algorithm="stream-two", quick=True),
)

# ouro of another build directory, to measure the effect of a change.
OTHER = Setting("other", "ouro", True)

# Packages (Debian) to install if a family is missing.
PACKAGES = {
    "ompi": "openmpi-bin libopenmpi-dev",
    "mpich": "mpich libmpich-dev",
    "gloo": "libgloo-dev",
}
LAUNCHERS = {"ompi": "mpirun.openmpi", "mpich": "mpirun.mpich"}


def by_name(name):
    return next((s for s in SETTINGS if s.name == name), None)


def is_bare(peer):
    """Whether a name as in a row is a way of the bare program."""
    return peer.startswith("bare-")


def keeps(peer):
    """Whether a peer, named as in a row, runs under KEEP."""
    setting = by_name(peer)
    return setting is not None and setting.keep


def commands(setting, build, ranks, cores, arguments):
    """The processes of one launch: a launcher, or one process for each rank."""
    program = [str(pathlib.Path(build) / "bin" / f"compare_{setting.family}"), *arguments]
    crowded = ranks > len(cores)
    if setting.family == "ompi":
        bind = ["--oversubscribe", "--bind-to", "none"] if crowded else ["--bind-to", "core"]
        return [["mpirun.openmpi", "-np", str(ranks), *bind, *setting.arguments, *program]]
    if setting.family == "mpich":
        return [["mpirun.mpich", "-np", str(ranks), "-bind-to", "none" if crowded else "core", *setting.arguments, *program]]
    return [[*program, "--rank", str(rank)] for rank in range(ranks)]


def environment(setting, base):
    env = {k: v for k, v in base.items() if k not in KEEP}
    return {**env, **ROOT, **(KEEP if setting.keep else {})}
