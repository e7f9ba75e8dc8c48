# A communicator over hosts that are network namespaces, set up by its unique id alone: in host mode, or, given a
# runtime with emulated devices and cuda_client, on device memory. Usage: hosts_test.py NETLAB LIBRARY [RUNTIME CLIENT]
# Skipped (77) if netlab cannot create hosts.
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

RANKS = 4


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def rank_main(library, rank, place):
    c = ctypes.CDLL(library)
    c.ncclGetLastError.restype = ctypes.c_char_p
    c.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]

    def ok(result):
        assert result == 0, c.ncclGetLastError(None)

    for round in range(2):
        file, unique, comm = pathlib.Path(f"{place}.{round}"), UniqueId(), ctypes.c_void_p()
        if rank == 0:
            ok(c.ncclGetUniqueId(ctypes.byref(unique)))
            file.with_suffix(".new").write_bytes(bytes(unique))
            file.with_suffix(".new").rename(file)
        while not file.exists():
            time.sleep(0.01)
        unique = UniqueId.from_buffer_copy(file.read_bytes())
        ok(c.ncclCommInitRank(ctypes.byref(comm), RANKS, unique, rank))
        count = 100_000
        numbers = ctypes.c_float * count
        mine, sum = numbers(*[rank + 1] * count), numbers()
        ok(c.ncclAllReduce(mine, sum, ctypes.c_size_t(count), 7, 0, comm, None))
        assert set(sum) == {RANKS * (RANKS + 1) / 2}, set(sum)
        ok(c.ncclGroupStart())
        ok(c.ncclSend(mine, ctypes.c_size_t(count), 7, (rank + 1) % RANKS, comm, None))
        ok(c.ncclRecv(sum, ctypes.c_size_t(count), 7, (rank - 1) % RANKS, comm, None))
        ok(c.ncclGroupEnd())
        assert set(sum) == {(rank - 1) % RANKS + 1}, set(sum)
        ok(c.ncclCommDestroy(comm))
    print("rank", rank, "is well")


def inside(library, runtime=None, client=None):
    hosts = os.environ["NETLAB_HOSTS"].split(",")
    ways = ({}, {"OURO_SECURITY": "tls"}, {"NCCL_SOCKET_FAMILY": "AF_INET6"})
    if client:  # two ranks of a host share its only device, or have one each; over the network their memory is staged
        ways = ({"OURO_FAKE_GPUS": "1"}, {"OURO_FAKE_GPUS": "2"})
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            place = os.path.join(folder, "-".join(["id", *way.values()]))
            environment = {k: v for k, v in os.environ.items() if not k.startswith("OURO_")}
            environment |= {"OURO_JOIN_DEADLINE": "60"} | way
            environment |= {"LD_PRELOAD": runtime} if client else {"OURO_NCCL_HOST": "1"}

            def command(rank):
                if client:
                    return [client, "rank", str(RANKS), way["OURO_FAKE_GPUS"], str(rank), place]
                return [sys.executable, __file__, library, str(rank), place]

            ranks = [subprocess.Popen(["ip", "netns", "exec", hosts[r * len(hosts) // RANKS], *command(r)], env=environment)
                     for r in range(RANKS)]
            codes = [r.wait(90) for r in ranks]
            assert codes == [0] * RANKS, (way, codes)


if sys.argv[1] == "inside":
    inside(*sys.argv[2:])
elif len(sys.argv) == 4:
    rank_main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
else:
    sys.exit(subprocess.run([sys.argv[1], "run", "nccl", "2", "--", sys.executable, __file__, "inside",
                             *(os.path.abspath(a) for a in sys.argv[2:])]).returncode)
