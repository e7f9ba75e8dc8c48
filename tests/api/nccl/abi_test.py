# The binary interface of libnccl.so.2. Usage: abi_test.py LIBRARY EXPORTS MEBIBYTES. EXPORTS has the names of nccl.h,
# one on each line.
import os
import pathlib
import subprocess
import sys
import tempfile

library, names = sys.argv[1], pathlib.Path(sys.argv[2]).read_text().split()
NEEDED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2"}
LIMIT = int(sys.argv[3]) << 20  # bytes, without symbols and debugging information
complaints = []


def output(*command, **kwargs):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **kwargs).stdout


def expect(condition, text):
    if not condition:
        complaints.append(text)


# Exports: each name as a weak symbol, and with a prefix p as a strong one; otherwise only ouro's own.
found = {}
for line in output("nm", "-D", "--defined-only", library).splitlines():
    _, kind, name = line.split()
    found[name] = kind
wanted = {name: "W" for name in names} | {"p" + name: "T" for name in names} | {"ouro_nccl_identity": "T"}
for name in sorted(wanted.keys() | found.keys()):
    expect(wanted.get(name) == found.get(name),
           f"{name}: expected {wanted.get(name, 'not exported')}, found {found.get(name, 'not exported')}")

# The libraries that it needs, and its soname.
needed, soname = set(), None
for line in output("readelf", "-dW", library).splitlines():
    if "(NEEDED)" in line:
        needed.add(line.split("[")[1].rstrip("]"))
    if "(SONAME)" in line:
        soname = line.split("[")[1].rstrip("]")
expect(soname == "libnccl.so.2", f"SONAME is {soname}")
expect(needed <= NEEDED, f"needs {sorted(needed - NEEDED)}")

with tempfile.TemporaryDirectory() as folder:
    stripped = os.path.join(folder, "stripped.so")
    subprocess.run(["strip", "--strip-all", "-o", stripped, library], check=True)
    size = os.path.getsize(stripped)
    expect(size < LIMIT, f"{size} bytes; expected less than {LIMIT}")

# Loading it has no effects: no thread, no descriptor, no other library. The first call needs nothing either.
probe = r"""
import ctypes, os, sys
def state(): return (len(os.listdir('/proc/self/task')), sorted(os.listdir('/proc/self/fd')))
before = state()
c = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)
version = ctypes.c_int()
assert state() == before, (before, state())
assert c.ncclGetVersion(ctypes.byref(version)) == 0
print(version.value)
maps = open('/proc/self/maps').read()
for other in ('libhwloc', 'libfmt', 'libucp', 'libcuda', 'libouro.so'):
    assert other not in maps, other
c.ncclGetErrorString.restype = ctypes.c_char_p
for code in range(8):
    assert c.ncclGetErrorString(code) not in (b'', b'unknown result code'), code
for code in (8, 9, -1, 1000):
    assert c.ncclGetErrorString(code) == b'unknown result code', code
"""
expect(output(sys.executable, "-c", probe, library).strip() == "23007", "ncclGetVersion is not 23007")
expect(output(sys.executable, "-c", probe, library, env=os.environ | {"OURO_NCCL_VERSION": "22809"}).strip() == "22809",
       "OURO_NCCL_VERSION is not what ncclGetVersion says")

print(f"{len(found)} exports, needs {sorted(needed)}, {size} bytes")
for complaint in complaints:
    print("FAILED:", complaint)
sys.exit(1 if complaints else 0)
