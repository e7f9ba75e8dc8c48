# PyTorch, unmodified: every libnccl.so.2 symbol that its libraries use is bound to ouro's library, which is preloaded
# in front of another. Usage: torch_bindings.py LIBRARY
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import torch_place

library = os.path.realpath(sys.argv[1])
wanted = set()
for path in torch_place.packages().glob("libtorch*.so"):
    names = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    wanted |= {(path.name, name) for name in re.findall(r" p?(nccl[A-Z]\w*)$", names, re.M)}

CODE = """
import torch
first, second = torch.cuda.nccl.unique_id(), torch.cuda.nccl.unique_id()
assert len(first) == 128 and first != second
print("version", *torch.cuda.nccl.version())
"""
# Checks bindings, not mappings: a mapped copy may be one that is never called.
with tempfile.TemporaryDirectory() as logs:
    done = subprocess.run([torch_place.interpreter(), "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=100, env=os.environ | {"LD_PRELOAD": library, "LD_DEBUG": "bindings",
                                                         "LD_DEBUG_OUTPUT": f"{logs}/bindings"})
    bound = {}
    for log in pathlib.Path(logs).iterdir():
        for line in log.open(errors="replace"):
            if match := re.search(r"binding file (\S+) \[0\] to (\S+) \[0\]: normal symbol `(nccl\w+)'", line):
                bound[os.path.basename(match[1]), match[3]] = os.path.realpath(match[2])
print(done.stdout, f"{len(wanted)} names of PyTorch's, {len(bound)} bound", sep="")
# The version that it was compiled with, not the one that it runs with.
assert done.returncode == 0 and re.search(r"^version 2 \d+ \d+$", done.stdout, re.M), done.stdout
assert len(wanted) > 30, wanted
elsewhere = {f"{user}: {name} -> {bound.get((user, name))}" for user, name in wanted if bound.get((user, name)) != library}
assert not elsewhere, elsewhere
