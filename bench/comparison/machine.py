# The state of the machine in this run: cores, caches, the share of other programs, probes.
# Used by command.py.
import json
import os
import pathlib
import platform
import resource
import subprocess
import time

NEAR_NS = 120  # two cores that share a cache hand a line over faster than this


def mode(handoff_ns):
    return "single" if handoff_ns <= 0 else "near" if handoff_ns < NEAR_NS else "far"


def cores():
    return sorted(os.sched_getaffinity(0))


def l3_bytes():
    try:
        text = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
    except OSError:
        return 32 << 20
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


class Load:
    """Share of the processors that other programs (and the hypervisor) have taken since this object was made."""

    def __init__(self):
        self.start = time.monotonic(), self._busy_s(), self._own_s()

    def others(self):
        began, busy, own = self.start
        elapsed = max(time.monotonic() - began, 1e-3)
        taken = (self._busy_s() - busy) - (self._own_s() - own)
        return max(0.0, taken / (elapsed * os.cpu_count()))

    @staticmethod
    def _busy_s():
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = fields
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _own_s():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used)


def wait_quiet(seconds):
    """Waits until no other program has run for 40 ms, for at most the given time."""
    until = time.monotonic() + seconds
    while True:
        load = Load()
        time.sleep(0.04)
        if load.others() < 0.06 or time.monotonic() > until:
            return


def probe(build, core_list):
    if len(core_list) < 2:
        return {"handoff_ns": 0.0}
    program = pathlib.Path(build) / "bin" / "compare_probe"
    done = subprocess.run([str(program), ",".join(map(str, core_list[:2]))], capture_output=True, text=True, timeout=60,
                          check=True)
    return json.loads(done.stdout)


def describe(core_list):
    said = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if not line.strip():
            break  # the first processor stands for all
        name, _, value = line.partition(":")
        said[name.strip()] = value.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    thp = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "processor": said.get("model name", "unknown processor"),
        # A virtual machine may hide the name; vendor and family do not.
        "vendor": said.get("vendor_id", "unknown"),
        "family": said.get("cpu family", "unknown"),
        "model": said.get("model", "unknown"),
        "stepping": said.get("stepping", "unknown"),
        "vectors": [f for f in ("avx2", "avx512f", "fsrm", "erms") if f in said.get("flags", "").split()],
        "cores": len(core_list),
        "l3_bytes": l3_bytes(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "large_pages": thp.read_text().strip() if thp.exists() else "none",
        "virtual": "hypervisor" in said.get("flags", "").split(),
    }


def commit(root):
    try:
        done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                              text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
