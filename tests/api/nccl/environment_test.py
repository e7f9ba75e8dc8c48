# The surroundings of libnccl.so.2: NCCL's variables, and a driver with GPUs. Usage: environment_test.py LIBRARY DRIVER_FOLDER
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = r"""
import ctypes, sys
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_byte * 128)]
c = ctypes.CDLL(sys.argv[1])
c.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
unique, comm = Id(), ctypes.c_void_p()
assert c.ncclGetUniqueId(ctypes.byref(unique)) == 0
print("result", c.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0))
if comm: assert c.ncclCommDestroy(comm) == 0
"""
BARE = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "OURO_"))}


def run(**variables):
    done = subprocess.run([sys.executable, "-c", PROGRAM, sys.argv[1]], env=BARE | {"OURO_NCCL_HOST": "1"} | variables,
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
_, log = run(NCCL_DEBUG="INFO", OURO_DEBUG="WARN")  # ouro's own wins
assert "NCCL interface" in log and "INFO" not in log, log
with tempfile.TemporaryDirectory() as folder:
    _, log = run(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=folder + "/log.%p")
    written = [f.read_text() for f in pathlib.Path(folder).iterdir()]
    assert log == "" and len(written) == 1 and "host mode" in written[0], (log, written)

# A non-blocking communicator by the environment; devices without the word for the host.
out, _ = run(NCCL_COMM_BLOCKING="0")
assert "result 7" in out, out
out, log = run(OURO_NCCL_HOST="0", OURO_FAKE_GPUS="1")
assert "result 5" in out, out
out, _ = run(OURO_NCCL_HOST="1", OURO_FAKE_GPUS="1")
assert "result 0" in out, out
out, _ = run(OURO_NCCL_HOST="0", LD_LIBRARY_PATH=sys.argv[2])
assert "result 5" in out, out
out, _ = run(OURO_NCCL_HOST="1", LD_LIBRARY_PATH=sys.argv[2])
assert "result 0" in out, out
print("all as it should be")
