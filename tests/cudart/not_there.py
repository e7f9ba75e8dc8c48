# Writes stubs for all functions of CUDA's runtime and driver that the tests' versions lack: each reports its name.
# Usage: not_there.py LIBCUDART CUDA_H OUTPUT SOURCE...
import pathlib
import re
import subprocess
import sys

library, header, output, *sources = sys.argv[1:]
defined = {"cudaGetErrorName", "cudaGetErrorString"}
for source in sources:
    text = pathlib.Path(source).read_text()
    defined |= set(re.findall(r"OURO_CU(?:DART)?\((\w+)", text))
    defined |= set(re.findall(r"OURO_HIDDEN_CUDART\([^,]+,\s*(\w+)", text))
names = set()
for line in subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
    name = line.split()[-1].split("@")[0]
    if name.startswith(("cuda", "__cuda")):
        names.add(name)
# Driver functions: as declared, and by the versioned names that macros give them.
declared = pathlib.Path(header).read_text()
names |= set(re.findall(r"^CUresult CUDAAPI\s+(cu[A-Z]\w*)\(", declared, re.M)) | set(re.findall(r"\b(cu[A-Z]\w*_v\d)\b", declared))
lines = ["// Functions of CUDA that the runtime and the driver of the tests have not. Written by not_there.py.",
         "extern \"C\" int ouro_cudart_not_there(const char* name);",
         "#define NOT_THERE(name) extern \"C\" __attribute__((visibility(\"default\"))) int name() { return ouro_cudart_not_there(#name); }"]
lines += [f"NOT_THERE({name})" for name in sorted(names - defined)]
pathlib.Path(output).write_text("\n".join(lines) + "\n")
