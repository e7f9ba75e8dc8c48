# Unique ids on a machine whose only network interface is the loopback, in network namespaces of the test's own. Usage:
# loopback_test.py LIBRARY. Skipped (77) if such namespaces cannot be made.
import os
import shutil
import subprocess
import sys

PROGRAM = r"""
import ctypes, sys
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_byte * 128)]
c = ctypes.CDLL(sys.argv[1])
c.ncclGetLastError.restype = ctypes.c_char_p
c.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
unique, comms = Id(), (ctypes.c_void_p * 2)()
assert c.ncclGetUniqueId(ctypes.byref(unique)) == 0, c.ncclGetLastError(None)
c.ncclGroupStart()
for rank in range(2):
    assert c.ncclCommInitRank(ctypes.cast(ctypes.byref(comms, 8 * rank), ctypes.POINTER(ctypes.c_void_p)), 2, unique, rank) == 0
assert c.ncclGroupEnd() == 0, c.ncclGetLastError(None)
for comm in comms: assert c.ncclCommAbort(ctypes.c_void_p(comm)) == 0
print("place", bytes(unique)[72:].split(b"\\0")[0].decode())
"""
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "OURO_"))}
PREPARE = {"both": "", "IPv4": "ip -6 address flush dev lo;", "IPv6": "ip -4 address flush dev lo;"}


def inside(script, *arguments, **variables):
    command = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", "ip link set lo up || exit 77; " + script, "sh"]
    return subprocess.run([*command, *arguments], env=BARE | {"OURO_NCCL_HOST": "1"} | variables, text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def works(addresses, starts, **variables):
    done = inside(PREPARE[addresses] + ' exec "$@"', sys.executable, "-c", PROGRAM, sys.argv[1], **variables)
    assert done.returncode == 0, (addresses, variables, done.stderr)
    assert ("place " + starts) in done.stdout, (addresses, variables, done.stdout)
    return done.stderr


if not shutil.which("unshare") or not shutil.which("ip"):
    print("SKIP: not installed: unshare and ip")
    sys.exit(77)
if inside("ip -6 address show dev lo | grep -q ::1").returncode != 0:
    print("SKIP: this system allows no network namespaces with IPv6")
    sys.exit(77)
works("both", "127.0.0.1:")
works("both", "127.0.0.1:", NCCL_SOCKET_FAMILY="AF_INET")
works("both", "[::1]:", NCCL_SOCKET_FAMILY="AF_INET6")
works("both", "[::1]:", NCCL_SOCKET_FAMILY=" AF_INET6 ")
works("IPv6", "[::1]:")
works("IPv4", "127.0.0.1:")
# There is none of the family: an id for this host, and the reason.
log = works("IPv4", "AF_INET6, and has lo", NCCL_SOCKET_FAMILY="AF_INET6")
assert "lo has no IPv6 address" in log and "asked for AF_INET6" in log, log
print("all as it should be")
