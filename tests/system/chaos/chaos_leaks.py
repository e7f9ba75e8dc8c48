# What a job may leak outside of its ranks: processes, descriptors of the program that started it, named sockets. Used
# by chaos.py before and after each job.
import os
import subprocess

import lab


class Surroundings:
    def __init__(self):
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.sockets, self.processes = set(), set()
        hosts = [i for i in range(8) if lab.NAME and os.path.exists(f"/run/netns/{lab.host(i)}")]
        for i in hosts:
            # No other program uses the lab, so all of these processes belong to the job.
            self.processes |= {f"process {p} on host {i}" for p in self.of(["ip", "netns", "pids", lab.host(i)])}
            self.sockets |= {s for s in self.of(lab.inside(i, "cat", "/proc/net/unix")) if s.startswith("@ouro/")}
        self.children = self.of(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())])

    @staticmethod
    def of(command):
        return subprocess.run(command, capture_output=True, text=True).stdout.split()

    def more_than(self, before):
        """Returns a line for each thing that did not exist in `before`."""
        lines = sorted(self.processes - before.processes) + sorted(self.sockets - before.sockets)
        if "chaos_rank" in self.children:
            lines.append("a rank is still there")
        if self.descriptors > before.descriptors:
            lines.append(f"{self.descriptors - before.descriptors} descriptors of the program that started the job")
        return lines
