# Distribution of the time until each survivor has noticed a fault: deaths on one host, silence of another host. Used
# by matrix.py.
import statistics

from cells import Cell, Row, Unmet


def share(sorted_values, p):
    return sorted_values[min(len(sorted_values) - 1, int(p * len(sorted_values)))]


class Sample(Cell):
    """A cell that runs `times` times; its note is the distribution over all survivors of all runs."""

    def __init__(self, row, way, phase, times, limit):
        super().__init__(row, way, phase)
        self.times, self.limit = times, limit

    def expected(self):
        return f"{self.times} times: p99 within {self.limit:.2f} s, all within {self.bound():.2f} s"

    def run(self):
        took = []
        for _ in range(self.times):
            one = Once(self.row, self.way, self.phase)
            one.run()
            took += one.each
        took.sort()
        self.took = share(took, 0.99)
        self.note = (f"{len(took)} survivors: median {statistics.median(took) * 1e3:.1f}, p90 {share(took, 0.9) * 1e3:.1f}, "
                     f"p99 {share(took, 0.99) * 1e3:.1f}, max {took[-1] * 1e3:.1f} ms")
        if self.took > self.limit:
            raise Unmet(self.note)


class Once(Cell):
    def expect_survivors(self, job, survivors):
        """Records only the times: other cells check the rest. The remaining ranks are killed with the job."""
        self.each = [s.first("failed")["t"] - self.since for s in survivors]


D0 = Row("D0", "SIGKILL of a rank of the same host, again and again", "shm", "running", do="kill", reasons=("peer-dead",),
         within=1.0, shapes={"shm": (3,)})
D1 = Row("D1", "SIGKILL of a rank of another host, again and again", "tcp", "running", do="kill", reasons=("peer-dead",),
         within=0.5, shapes={"net": (2, 1)})
D2 = Row("D2", "SIGSTOP of a rank of another host, default limits, again and again", "tcp", "running", do="stop",
         reasons=("peer-unresponsive",), within=5.5, shapes={"net": (2, 1)},
         limits={"OURO_SILENT_FAIL": "5", "OURO_SILENT_WARN": "1"})
SAMPLES = [Sample(D0, "shm", "running", 100, 0.1), Sample(D1, "tcp", "running", 60, 0.5),
           Sample(D2, "tcp", "running", 12, 5.5)]
