# Writes the functions of CUDA's runtime that the one of the tests has not: each says so by its name.
# Usage: not_there.py LIBCUDART OUTPUT SOURCE...
import pathlib
import re
import subprocess
import sys

library, output, *sources = sys.argv[1:]
defined = {"cudaGetErrorName", "cudaGetErrorString"}
for source in sources:
    text = pathlib.Path(source).read_text()
    defined |= set(re.findall(r"OURO_CUDART\((\w+)", text))
    defined |= set(re.findall(r"OURO_HIDDEN_CUDART\([^,]+,\s*(\w+)", text))
names = set()
for line in subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
    name = line.split()[-1].split("@")[0]
    if name.startswith(("cuda", "__cuda")):
        names.add(name)
lines = ["// Functions of CUDA's runtime that the one of the tests has not. Written by not_there.py.",
         "extern \"C\" int ouro_cudart_not_there(const char* name);",
         "#define NOT_THERE(name) extern \"C\" __attribute__((visibility(\"default\"))) int name() { return ouro_cudart_not_there(#name); }"]
lines += [f"NOT_THERE({name})" for name in sorted(names - defined)]
pathlib.Path(output).write_text("\n".join(lines) + "\n")
