# Compiles the adapter into the cache that the tests share, and tries what is said where that cannot be done.
# Usage: adapter_test.py make | wrong
import os
import subprocess
import sys
import tempfile

import places

NO_COMPILER = "CXX names no-such-compiler, which is not there"


def build(**variables):
    return subprocess.run([places.interpreter(), "-c", variables.pop("program", "from ouro.torch import build; print('adapter', build.adapter().version())")],
                          capture_output=True, text=True, env=places.environment(**variables), timeout=500)


if sys.argv[1] == "make":
    done = build()
    print(done.stdout, done.stderr[-3000:])
    sys.exit(done.returncode)

with tempfile.TemporaryDirectory() as empty:
    done = build(OURO_TORCH_CACHE=empty, CXX="no-such-compiler")
    assert done.returncode == 1 and NO_COMPILER in done.stderr, done.stderr
    done = build(OURO_TORCH_CACHE=empty, CXX=sys.executable)  # which is no compiler
    assert done.returncode == 1 and "compiling the adapter" in done.stderr, done.stderr
    done = build(program="import torch; torch.__version__ = '2.4.1'; from ouro.torch import build; build.adapter()")
    assert done.returncode == 1 and "PyTorch 2.4.1 is too old; 2.9 or newer" in done.stderr, done.stderr
    assert not [f for f in os.listdir(empty) if f.endswith(".so")]
print("what is missing is named")
