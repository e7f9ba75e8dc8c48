# Compiles the adapter into the cache that the tests share; tests the messages if that is not possible, and which
# backend carries the groups of another name. Usage: adapter_test.py make | stand_in | wrong
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
    if sys.argv[1] == "stand_in":
        program = f"""import os, ouro.torch, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{empty}/store" + os.environ.get("OURO_TORCH_AS", ""), rank=0, world_size=1)
print(dist.get_backend(), "by", ouro.torch.carrier())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
print(model._get_ddp_logging_data()["gloo_num_threads"], "threads")  # which PyTorch reads out of what it takes for gloo's
ouro.torch.stand_in("glo")"""
        for variables, carrier in ({"OURO_TORCH_AS": "gloo"}, "ouro"), ({}, "gloo"):
            done = build(program=program, **variables)
            assert f"gloo by {carrier}\n2 threads\n" in done.stdout and "no backend 'glo' for which to stand in" in done.stderr, done
        print("the groups of another name are carried where it is asked for")
        sys.exit()
    done = build(OURO_TORCH_CACHE=empty, CXX="no-such-compiler")
    assert done.returncode == 1 and NO_COMPILER in done.stderr, done.stderr
    done = build(OURO_TORCH_CACHE=empty, CXX=sys.executable)  # not a compiler
    assert done.returncode == 1 and "compiling the adapter" in done.stderr, done.stderr
    done = build(program="import torch; torch.__version__ = '2.4.1'; from ouro.torch import build; build.adapter()")
    assert done.returncode == 1 and "PyTorch 2.4.1 is too old; 2.9 or newer" in done.stderr, done.stderr
    assert not [f for f in os.listdir(empty) if f.endswith(".so")]
    # Folders in which no module can be kept: the one that the user names is an error, another one is replaced.
    noexec = f"{empty}/noexec"
    os.mkdir(noexec)
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", noexec], capture_output=True).returncode == 0:
        try:
            done = build(OURO_TORCH_CACHE=noexec)
            assert done.returncode == 1 and "noexec is mounted noexec. OURO_TORCH_CACHE names a folder" in done.stderr, done.stderr
            where = "from ouro.torch import build; print('in', build._folder())"
            done = build(program=where, OURO_TORCH_CACHE="", XDG_CACHE_HOME=noexec, TMPDIR=empty)
            assert done.stdout == f"in {empty}/ouro-torch-{os.getuid()}\n", done
            os.chmod(f"{empty}/ouro-torch-{os.getuid()}", 0o755)
            done = build(OURO_TORCH_CACHE="", XDG_CACHE_HOME=noexec, TMPDIR=empty)
            assert done.returncode == 1 and "is not a folder of this user's alone" in done.stderr, done.stderr
        finally:
            subprocess.run(["umount", noexec], check=True)
    done = build(OURO_TORCH_CACHE="/proc/nowhere")
    assert done.returncode == 1 and "/proc/nowhere: No such file or directory" in done.stderr, done.stderr
    # Nothing says who the ranks are; a rank that never comes.
    done = build(program=f"""import ouro.torch, datetime, torch.distributed as dist
for options in ({{}}, dict(init_method="file://{empty}/store", rank=0, world_size=3, timeout=datetime.timedelta(seconds=1))):
    try:
        dist.init_process_group("ouro", **options)
    except Exception as e:
        print(type(e).__name__, e)""", **{name: "" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")})
    assert "environment variable RANK expected" in done.stdout, done
    assert "the ranks do not meet: ranks [1, 2] of 3 have not arrived" in done.stdout, done
print("what is missing is named")
