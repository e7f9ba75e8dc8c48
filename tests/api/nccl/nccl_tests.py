# The programs of nccl-tests, unmodified, on emulated devices. Usage: nccl_tests.py RUNTIME LIBRARY. NCCL_TESTS_DIR is
# the folder with all_reduce_perf and the others, built with the dynamic CUDA runtime; without it the test is skipped.
import os
import pathlib
import re
import subprocess
import sys

folder = os.environ.get("NCCL_TESTS_DIR")
if not folder:
    print("SKIP: not given: NCCL_TESTS_DIR, the folder with the programs of nccl-tests")
    sys.exit(77)
runtime, library = sys.argv[1:]
TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"]
REDUCTIONS = ["sum", "prod", "max", "min", "avg", "mulsum"]
SIZES = ["-b", "8", "-e", "64K", "-f", "16", "-n", "2", "-w", "1", "-c", "1"]
failures = []


def run(program, *options, devices=2):
    path = pathlib.Path(folder) / program
    if not path.exists():
        return failures.append(f"{program} is not in {folder}")
    environment = os.environ | {"LD_PRELOAD": f"{runtime} {library}", "OURO_FAKE_GPUS": str(devices), "OURO_DEADLINE": "30"}
    done = subprocess.run([path, *SIZES, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300)
    # Its last lines contain "# Out of bounds values : 0 OK". A table without rows would also say so.
    rows = re.findall(r"^ +\d+ +\d+ +\w+ .*$", done.stdout, re.M)
    right = done.returncode == 0 and re.search(r"Out of bounds values : 0 OK", done.stdout) and rows
    print(f"{'ok  ' if right else 'FAIL'} {program} {' '.join(options)}, {devices} devices: {len(rows)} rows")
    if not right:
        failures.append(f"{program} {' '.join(options)}\n{done.stdout[-3000:]}")


# All types and reductions; ranks as threads, and several ranks driven by one thread.
for reduction in REDUCTIONS:
    run("all_reduce_perf", "-t", "2", "-d", "all", "-o", reduction)
run("reduce_scatter_perf", "-t", "2", "-d", "all", "-o", "sum")
run("reduce_perf", "-t", "2", "-d", "half", "-o", "all", "-r", "1")
for program in ["all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "scatter", "alltoall", "alltoallv",
                "sendrecv"]:
    run(f"{program}_perf", "-g", "4", devices=4)
    run(f"{program}_perf", "-t", "2", "-g", "2", devices=4)
# With several ranks in one thread, its steps, which depend on each other, would all be in one group.
run("hypercube_perf", "-t", "4", devices=4)
# Graphs, registered buffers, blocking calls, ranks that start one after the other.
run("all_reduce_perf", "-t", "2", "-G", "2")
run("alltoall_perf", "-t", "2", "-G", "1")
run("all_reduce_perf", "-t", "2", "-R", "1")
run("all_reduce_perf", "-t", "2", "-z", "1")
run("sendrecv_perf", "-t", "2", "-p", "1")
for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)
