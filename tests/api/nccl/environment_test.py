# The environment of libnccl.so.2: NCCL's variables, and a driver with GPUs. Usage: environment_test.py
# LIBRARY DRIVER_FOLDER
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = r"""
import ctypes, struct, sys
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_byte * 128)]
c = ctypes.CDLL(sys.argv[1])
c.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
unique, comm = Id(), ctypes.c_void_p()
config = None
if len(sys.argv) > 2:  # as a program of NCCL 2.17 passes it
    undefined = -2**31
    config = struct.pack("QIIiiiiP", 40, 0xCAFEBEEF, 21700, undefined, undefined, undefined, int(sys.argv[2]), 0)
    c.ncclCommInitRank = lambda comm, n, unique, rank: c.ncclCommInitRankConfig(comm, n, unique, rank, config)
    c.ncclCommInitRankConfig.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int, ctypes.c_char_p]
print("result", c.ncclGetUniqueId(ctypes.byref(unique)) or c.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0))
if comm: assert c.ncclCommDestroy(comm) == 0
"""
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "OURO_"))}


def run(*arguments, **variables):
    done = subprocess.run([sys.executable, "-c", PROGRAM, sys.argv[1], *arguments], env=BARE | {"OURO_NCCL_HOST": "1"} | variables,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


out, log = run()
assert log == "" and "result 0" in out, log
_, log = run(NCCL_DEBUG="VERSION")
assert "NCCL interface 2.30.7" in log and "INFO" not in log, log
_, log = run(NCCL_DEBUG="info", NCCL_NVLS_ENABLE="1")
assert "host mode" in log and "mean nothing here: NCCL_NVLS_ENABLE" in log, log
_, log = run(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="COLL")
assert "host mode" not in log, log
_, log = run(NCCL_DEBUG="INFO", OURO_DEBUG="WARN")  # ouro's own variable takes precedence
assert "NCCL interface" in log and "INFO" not in log, log
with tempfile.TemporaryDirectory() as folder:
    _, log = run(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=folder + "/log.%p")
    written = [f.read_text() for f in pathlib.Path(folder).iterdir()]
    assert log == "" and len(written) == 1 and "host mode" in written[0], (log, written)


def refused(text, **variables):
    """Joining fails with this text, which names the variable."""
    out, log = run(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL", **variables)
    assert "result 4" in out and text in log, (out, log)


def settled(text, **variables):
    """Joining succeeds, and the log says what a variable was converted to."""
    out, log = run(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ALL", **variables)
    assert "result 0" in out and text in log, (out, log)
    assert not any(f"mean nothing here: {name}" in log or f", {name}" in log for name in variables), log


# Each variable that has a counterpart becomes a setting of ouro's, and the log says so.
settled("OURO_SOCKET_IFNAME=lo (NCCL_SOCKET_IFNAME)", NCCL_SOCKET_IFNAME="lo")
settled("OURO_HOSTID=alpha (NCCL_HOSTID)", NCCL_HOSTID="alpha")
settled("OURO_FABRIC=tcp (NCCL_NET)", NCCL_NET="Socket")
settled("OURO_SLOT_BYTES=65536 (NCCL_BUFFSIZE)", NCCL_BUFFSIZE="524288")
settled("OURO_SLOT_BYTES=4096 (NCCL_BUFFSIZE)", NCCL_BUFFSIZE="0")
# Numbers are those of NCCL, which reads them by strtoll: blanks around them, hexadecimal, octal, any number for "on".
for text in ("0x80000", " 524288 ", "02000000", "524288\n", "+524288"):
    settled("OURO_SLOT_BYTES=65536 (NCCL_BUFFSIZE)", NCCL_BUFFSIZE=text)
for text in ("1", "1 ", "0x1", "2"):
    settled("OURO_GPU_PATH=staged (NCCL_P2P_DISABLE)", NCCL_P2P_DISABLE=text)
settled("is complete", NCCL_P2P_DISABLE=" 0", NCCL_CHECK_POINTERS="0x0", NCCL_WIN_ENABLE="1 ", NCCL_SHM_DISABLE="1 ")
settled("OURO_FABRIC=tcp (NCCL_NET)", NCCL_NET="Socket ")
settled("have at most 4 blocks", NCCL_MAX_CTAS="4")
refused("NCCL_MAX_CTAS=few; expected a number of blocks", NCCL_MAX_CTAS="few")
_, log = run("6", NCCL_DEBUG="INFO")
assert "have at most 6 blocks" in log and "accepted and unused" not in log, log
_, log = run("6", NCCL_DEBUG="INFO", NCCL_MAX_CTAS="5")  # the variable takes precedence
assert "have at most 5 blocks" in log, log
_, log = run(NCCL_DEBUG="INFO")
assert "blocks" not in log, log
settled("OURO_SELECT=all_reduce:ring,all_gather:ring,reduce_scatter:ring (NCCL_ALGO)", NCCL_ALGO="Ring")
settled("OURO_SELECT=all_reduce:ring,broadcast:tree (NCCL_ALGO)", NCCL_ALGO="allreduce:ring; broadcast:TREE")
settled("leaves the algorithm of all_reduce to ouro", NCCL_ALGO="allreduce:^nvls")
settled("NCCL_ALGO=^NVLS leaves the algorithm of all_reduce, broadcast, reduce, all_gather, reduce_scatter", NCCL_ALGO="^NVLS")
settled("leaves the algorithm", NCCL_ALGO="^Quantum")  # words of later versions
settled("leaves the algorithm", NCCL_ALGO="Ring,Tree,Quantum")
settled("NCCL_PROTO=Simple has no effect", NCCL_PROTO="Simple")
refused("NCCL_ALGO=Quantum: 'quantum' leaves nothing", NCCL_ALGO="Quantum")
refused("leaves nothing", NCCL_ALGO="^tree,ring,collnetdirect,collnetchain,nvls,nvlstree,pat")
refused("there is no function 'sort'", NCCL_ALGO="sort:ring")
refused("leaves nothing", NCCL_PROTO="^LL,LL128,Simple")
refused("NCCL_NET=AWS Libfabric; expected Socket", NCCL_NET="AWS Libfabric")
for text in ("many", "4M", "0x", "1 2", "-1", "99999999999999999999"):
    refused(f"NCCL_BUFFSIZE={text}; expected a number of bytes", NCCL_BUFFSIZE=text)
refused("NCCL_SHM_DISABLE=maybe; expected 0 or 1", NCCL_SHM_DISABLE="maybe")
refused("NCCL_COMM_BLOCKING=no; expected 0 or 1", NCCL_COMM_BLOCKING="no")
refused("NCCL_SOCKET_FAMILY=AF_UNIX; expected AF_INET or AF_INET6", NCCL_SOCKET_FAMILY="AF_UNIX")
refused("NCCL_COMM_ID=somewhere; expected ADDRESS:PORT", NCCL_COMM_ID="somewhere")
settled("is complete", NCCL_SOCKET_FAMILY="AF_INET", NCCL_COMM_ID="127.0.0.1:7", NCCL_SHM_DISABLE="1")  # a communicator of one rank
refused("NCCL_CHECK_POINTERS=yes; expected 0 or 1", NCCL_CHECK_POINTERS="yes")
_, log = run(NCCL_DEBUG="INFO", NCCL_ALGO="Ring", OURO_SELECT="all_reduce:tree")  # ouro's own variable takes precedence
assert "OURO_SELECT=all_reduce:tree (environment)" in log, log

# Configuration files: the named one, else the one in the home directory; the environment takes precedence.
with tempfile.TemporaryDirectory() as folder:
    home, named = pathlib.Path(folder, ".nccl.conf"), pathlib.Path(folder, "named.conf")
    home.write_text("# of this user\nNCCL_DEBUG = info\nNCCL_HOSTID=from-home\n NCCL_QUEUE_DEPTH=7\n")
    named.write_text("NCCL_DEBUG=INFO\nNCCL_HOSTID=from-named\n")
    _, log = run(HOME=folder)
    assert "OURO_HOSTID=from-home (NCCL_HOSTID)" in log, log
    assert f"mean nothing here: NCCL_QUEUE_DEPTH ({home}:4)" in log, log
    _, log = run(HOME=folder, NCCL_HOSTID="from-environment")
    assert "OURO_HOSTID=from-environment" in log, log
    _, log = run(HOME=folder, NCCL_CONF_FILE=str(named))
    assert "OURO_HOSTID=from-named" in log and "QUEUE" not in log, log
    _, log = run(HOME=folder, NCCL_DEBUG="WARN")
    assert "INFO" not in log, log

# Without an interface that others reach, an id is for ranks of this host, and ranks of another one are told why.
_, log = run(NCCL_SOCKET_IFNAME="nowhere0")
assert "WARN" in log and "for ranks of this host only" in log and "asked for nowhere0" in log, log
PAIR = PROGRAM.replace("comm), 1, unique", "comm), 2, unique") + r"""
c.ncclGetLastError.restype = ctypes.c_char_p
print(c.ncclGetLastError(None).decode())
"""
done = subprocess.run([sys.executable, "-c", PAIR, sys.argv[1]], capture_output=True, text=True, timeout=60,
                      env=BARE | {"OURO_NCCL_HOST": "1", "NCCL_HOSTID": "elsewhere", "NCCL_SOCKET_IFNAME": "nowhere0"})
assert "result 5" in done.stdout and "made on another host" in done.stdout, done.stdout
assert "asked for nowhere0, and has " in done.stdout and "lo" in done.stdout, done.stdout

# Pointers that are not memory, and windows that are not requested.
CHECKED = PROGRAM.replace("if comm: assert", r"""
c.ncclBcast.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
c.ncclAllReduce.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_int] * 2 + [ctypes.c_void_p] * 2
c.ncclCommWindowRegister.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int]
c.ncclMemAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
c.ncclGetLastError.restype = ctypes.c_char_p
import mmap
page = mmap.mmap(-1, 4096)
whole = ctypes.addressof(ctypes.c_char.from_buffer(page))
readonly = ctypes.cast(c.ncclGetVersion, ctypes.c_void_p).value  # the program's text
print("well", c.ncclBcast(whole, 4096, 0, 0, comm, None), "long", c.ncclBcast(whole, 1 << 40, 0, 0, comm, None))
print("nowhere", c.ncclBcast(0x1000, 1, 0, 0, comm, None), "text", c.ncclAllReduce(whole, readonly, 8, 0, 0, comm, None))
print(c.ncclGetLastError(comm).decode())
memory, window = ctypes.c_void_p(), ctypes.c_void_p(8)
assert c.ncclMemAlloc(ctypes.byref(memory), 4096) == 0
print("window", c.ncclCommWindowRegister(comm, memory, 4096, ctypes.byref(window), 0), window.value)
if comm: assert""")
done = subprocess.run([sys.executable, "-c", CHECKED, sys.argv[1]], stdout=subprocess.PIPE, text=True, timeout=60,
                      env=BARE | {"OURO_NCCL_HOST": "1", "NCCL_CHECK_POINTERS": "1", "NCCL_WIN_ENABLE": "0"})
assert done.returncode == 0, done.stdout
assert "well 0 long 4" in done.stdout and "nowhere 4 text 4" in done.stdout, done.stdout
assert "recvbuff" in done.stdout and "cannot" not in done.stdout and "written" in done.stdout, done.stdout
assert "window 0 None" in done.stdout, done.stdout

# The variables are read again when the program requests it: more output, into a file, and silent again.
AGAIN = r"""
import ctypes, os, sys
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_byte * 128)]
c, unique = ctypes.CDLL(sys.argv[1]), Id()
setenv = ctypes.CDLL(None).setenv
def again(level, file=""):
    setenv(b"NCCL_DEBUG", level.encode(), 1)
    setenv(b"NCCL_DEBUG_SUBSYS", b"ALL", 1)
    setenv(b"NCCL_DEBUG_FILE", file.encode(), 1)
    c.ncclResetDebugInit()
    assert c.ncclBcast(None, 1, 0, 0, None, None) == 4
assert c.ncclGetUniqueId(ctypes.byref(unique)) == 0
assert c.ncclBcast(None, 1, 0, 0, None, None) == 4
again("INFO")
again("INFO", sys.argv[2])
again("WARN")
again("")
"""
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run([sys.executable, "-c", AGAIN, sys.argv[1], folder + "/log"], env=BARE | {"OURO_NCCL_HOST": "1"},
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ncclBcast: the communicator is null") == 1, done.stderr
    assert pathlib.Path(folder, "log").read_text().count("ncclBcast: the communicator is null") == 1

# A non-blocking communicator by the environment; GPUs without the setting for host mode.
for text in ("0", " 0x0"):
    out, _ = run(NCCL_COMM_BLOCKING=text)
    assert "result 7" in out, out
out, log = run(OURO_NCCL_HOST="0", OURO_FAKE_GPUS="1", NCCL_DEBUG="INFO")
assert "result 0" in out and "GPU mode" in log, (out, log)
out, _ = run(OURO_NCCL_HOST="1", OURO_FAKE_GPUS="1")
assert "result 0" in out, out
out, _ = run(OURO_NCCL_HOST="0", LD_LIBRARY_PATH=sys.argv[2])
assert "result 5" in out, out
out, _ = run(OURO_NCCL_HOST="1", LD_LIBRARY_PATH=sys.argv[2])
assert "result 0" in out, out
print("all as it should be")
