# ouro-info --who on processes that are linked, that use dlopen, and that do both. Usage: who_test.py OURO_INFO LIBRARY
# OTHER LINKED
import subprocess
import sys
import time

info, library, other, linked = sys.argv[1:]


def who(process, deadline=20):
    """The output of ouro-info, as soon as the process has got far enough for one."""
    end = time.monotonic() + deadline
    while True:
        done = subprocess.run([info, "--who", str(process.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if "no libnccl" not in done.stdout or time.monotonic() > end:
            return done.returncode, done.stdout + done.stderr
        time.sleep(0.05)


def python(*paths):
    code = "import ctypes, sys, time\n" + "".join(f"c = ctypes.CDLL({p!r})\n" for p in paths) + "print('here', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    return process


def end(process):
    process.kill()
    process.communicate()


# Linked: the name is bound to the file; with another library preloaded, to that one.
for environment, expected, verdict in (({}, 0, f"1 names bound to {library} (ouro's)"),
                                       ({"LD_PRELOAD": other}, 1, f"1 names bound to {other} (not ouro's)")):
    process = subprocess.Popen([linked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    version = process.stdout.readline()
    code, text = who(process)
    end(process)
    assert code == expected and verdict in text, (version, text)
    assert ("it calls ouro's library" if expected == 0 else "it calls another library") in text, text

# With dlopen: only the mappings can be known.
process = python(library)
code, text = who(process)
end(process)
assert code == 0 and f"mapped: {library} (ouro's)" in text and "leave no trace" in text, text
process = python(other)
code, text = who(process)
end(process)
assert code == 1 and f"mapped: {other} (not ouro's)" in text, text
process = python(library, other)
code, text = who(process)
end(process)
assert code == 1 and "not only ouro's" in text, text

process = python()
code, text = who(process, 0)
end(process)
assert code == 1 and "no libnccl is mapped" in text, text
code, text = who(process, 0)
assert code == 1 and "there is no process" in text, text
print("all as it should be")
