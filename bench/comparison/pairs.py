# bench/compare --transport: two ranks that share no memory, compared with ucx_perftest, Open MPI over TCP and a raw stream.
# Used by command.py; the pure parts are tested in tests/bench.
import dataclasses
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time

from comparison import launch, machine, report

LATENCY, STREAM, ALL_REDUCE = "latency", "stream", "all_reduce"
QUICK = [(LATENCY, 8), *((STREAM, b) for b in (64 << 10, 1 << 20, 16 << 20)),
         *((ALL_REDUCE, b) for b in (8, 64 << 10, 1 << 20, 16 << 20))]
FULL = [*QUICK[:1], (LATENCY, 1 << 10), *QUICK[1:4], *QUICK[4:], (ALL_REDUCE, 128 << 20)]
TWO_WAY = "two-way stream"
PERFTESTS = {"ucp_am_lat": LATENCY, "tag_lat": LATENCY, "ucp_am_bw": STREAM, "tag_bw": STREAM}
UCX_ENV = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
OMPI = {
    "ompi-tcp": ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"),
    "ompi-ucx": ("--mca", "pml", "ucx", "--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any",
                 "-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"),
}
FIELDS = ("what", "bytes", "ouro_us", "ouro_gbs", "peer", "peer_us", "ratio", "target", "verdict", "rounds", "spread")
COLUMNS = ("what", "bytes", "ouro us", "ouro GB/s", "peer", "peer us", "ratio", "target", "verdict")
SECONDS = 60  # the longest that one launch may take


@dataclasses.dataclass(frozen=True)
class Sample:
    peer: str
    round: int
    what: str
    bytes: int
    us: float
    wrong: int = 0


def target(transport, what, size, peer):
    """Least peer's time / ouro's, or None."""
    if peer == "ompi-tcp":
        return 1.0
    if transport != "ucx":
        return None
    if (what, peer) == (LATENCY, "ucp_am_lat"):
        return 1 / 1.10
    if (what, peer) == (STREAM, "tag_bw") and size >= 1 << 20:
        return 0.95
    if (what, peer) == (ALL_REDUCE, TWO_WAY) and size >= 16 << 20:
        return 0.85
    return None


def rows(samples, transport):
    """A row for each point and peer: the ratio is the median over rounds of peer / ouro of the same round."""
    mine, theirs = {}, {}
    for s in samples:
        at = mine.setdefault((s.what, s.bytes), {}) if s.peer == "ouro" else theirs.setdefault((s.what, s.bytes, s.peer), {})
        at[s.round] = None if s.wrong else s.us
    found = []
    for (what, size, peer), rounds in theirs.items():
        ouro = mine.get((what, size), {})
        void = None in ouro.values() or None in rounds.values()
        pairs = [] if void else [(ouro[r], rounds[r]) for r in sorted(rounds) if r in ouro]
        row = {"what": what, "bytes": size, "peer": peer, "target": target(transport, what, size, peer), "rounds": len(pairs)}
        row.update(dict.fromkeys(("ouro_us", "ouro_gbs", "peer_us", "ratio", "spread")), verdict="void" if void else "no rounds")
        if pairs:
            ratios = [b / a for a, b in pairs]
            us = statistics.median(a for a, _ in pairs)
            row.update(ouro_us=us, ouro_gbs=size / us / 1e3, peer_us=statistics.median(b for _, b in pairs),
                       ratio=statistics.median(ratios), spread=[min(ratios), max(ratios)])
            row["verdict"] = "no target" if row["target"] is None else "met" if row["ratio"] >= row["target"] else "not met"
        found.append(row)
    order = {p: i for i, p in enumerate(FULL)}
    return sorted(found, key=lambda r: (order.get((r["what"], r["bytes"]), len(order)), r["peer"]))


def table(found):
    lines = [COLUMNS]
    for r in found:
        number = lambda x, form: "-" if x is None else format(x, form)  # noqa: E731
        lines.append((r["what"], report.size_text(r["bytes"]), report.time_text(r["ouro_us"]), number(r["ouro_gbs"], ".2f"),
                      r["peer"], report.time_text(r["peer_us"]), number(r["ratio"], ".2f"), number(r["target"], ".2f"),
                      r["verdict"]))
    width = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(t.ljust(w) if i in (0, 4, 8) else t.rjust(w) for i, (t, w) in enumerate(zip(line, width))).rstrip()
                     for line in lines)


def perftest_us(text, what):
    """From the last line of ucx_perftest -f: the median one-way time, or the time of a message by the overall bandwidth."""
    for line in reversed(text.splitlines()):
        words = line.split()
        try:
            numbers = [float(w) for w in words]
        except ValueError:
            continue
        if len(numbers) == 8:
            return numbers[1] if what == LATENCY else 1e6 / numbers[7]
    return None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self, args, cores):
        self.args, self.cores = args, cores[:2]
        self.points = QUICK if args.quick else FULL
        self.bin = pathlib.Path(args.build) / "bin"
        self.samples, self.failures, self.libraries = [], [], {}

    def peers(self):
        """Names of the cases of a round, and a line for each that cannot run."""
        names, missing = ["ouro"], []
        for name in OMPI:
            if shutil.which("mpirun.openmpi") and (self.bin / "compare_pair_ompi").exists():
                names.append(name)
            else:
                missing.append(f"{name} is missing: apt-get install openmpi-bin libopenmpi-dev, then build")
        if shutil.which("ucx_perftest"):
            names += PERFTESTS
        else:
            missing.append("ucx_perftest is missing: apt-get install ucx-utils")
        return [*names, TWO_WAY], missing

    def run(self, name, round_):
        if name in PERFTESTS:
            why = self._perftest(name, round_)
        elif name == TWO_WAY:
            why = self._two_way(round_)
        else:
            why = self._pair(name, round_)
        if why:
            self.failures.append({"peer": name, "round": round_, "why": why})

    def _pair(self, name, round_):
        def took(point):
            self.libraries[name] = point["library"]
            self.samples.append(Sample(name, round_, point["what"], point["bytes"], point["us"], point["wrong"]))

        words = ["--points", ",".join(f"{w}:{b}" for w, b in self.points), "--cores", ",".join(map(str, self.cores)),
                 "--blocks", str(self.args.blocks), "--block-ms", str(self.args.block_ms), "--seconds", str(SECONDS)]
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        if name == "ouro":
            port = free_port()
            job = {"OURO_WORLD_SIZE": 2, "OURO_LOCAL_RANK": 0, "OURO_LOCAL_SIZE": 1, "OURO_INSECURE": 1, "OURO_CHECKSUM": 0,
                   "OURO_FABRIC": self.args.transport, "OURO_RENDEZVOUS": f"127.0.0.1:{port}", "OURO_JOB_ID": f"compare-{port}"}
            commands = [["env", *(f"{k}={v}" for k, v in job.items()), f"OURO_RANK={r}", f"OURO_HOSTID=host{r}",
                         str(self.bin / "compare_pair_ouro"), *words] for r in (0, 1)]
        else:
            commands = [["mpirun.openmpi", "-np", "2", "--oversubscribe", "--bind-to", "none", *OMPI[name],
                         str(self.bin / "compare_pair_ompi"), *words]]
        return launch.run(lambda _: commands, env, [], SECONDS, took)

    def _perftest(self, name, round_):
        what = PERFTESTS[name]
        for kind, size in self.points:
            if kind != what:
                continue
            # Takes about as long as all blocks of the other side, at 5 us or 4 GB/s.
            budget = self.args.blocks * self.args.block_ms * 1e3
            count = int(max(4, budget / (10 if what == LATENCY else size / 4e3)))
            command = ["ucx_perftest", "-p", str(free_port())]
            client = ["-f", "-t", name, "-s", str(size), "-n", str(count), "-w", str(count // 10 + 1), "127.0.0.1"]
            text = self._client_and_server(command, client)
            us = perftest_us(text, what)
            if us is None:
                return f"{name} {size}: {text.strip()[-200:] or 'no result'}"
            self.samples.append(Sample(name, round_, what, size, us))
        return None

    def _client_and_server(self, command, client):
        env = {**os.environ, **UCX_ENV}
        pin = [["taskset", "-c", str(c)] for c in self.cores]
        server = subprocess.Popen([*pin[-1], *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(50):  # until it listens
                time.sleep(0.1)
                done = subprocess.run([*pin[0], *command, *client], env=env, capture_output=True, text=True, timeout=SECONDS)
                if done.returncode == 0 or server.poll() is not None:
                    return done.stdout if done.returncode == 0 else done.stdout + done.stderr
            return done.stderr
        except subprocess.TimeoutExpired:
            return "no end"
        finally:
            if server.poll() is None:
                server.kill()
            server.wait()

    def _two_way(self, round_):
        """Least time of an all-reduce of two ranks: each sends and receives the whole buffer, or half of it twice."""
        speeds = []
        size = 256 << 20
        commands = [[str(self.bin / "compare_raw_stream"), str(self.cores[0]), str(self.cores[-1]), str(size), "30"]]
        why = launch.run(lambda _: commands, dict(os.environ), [], 30, lambda p: speeds.append(p["bytes"] / p["us"]))
        for what, bytes_ in self.points if speeds else ():
            if what == ALL_REDUCE and bytes_ >= 64 << 10:
                self.samples.append(Sample(TWO_WAY, round_, what, bytes_, bytes_ / speeds[0]))
        return why


def main(args, root):
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    cores = machine.cores()
    bench = Bench(args, cores)
    needed = [p for p in ("compare_pair_ouro", "compare_raw_stream") if not (bench.bin / p).exists()]
    if needed or len(cores) < 2:
        say(f"build first (cmake --preset bench): {', '.join(needed)} not in {bench.bin}" if needed else "two ranks want two cores")
        return 2
    names, missing = bench.peers()
    launch.adopt_orphans()
    for line in missing:
        say(line)
    others, until = [], time.monotonic() + (230 if args.quick else 3600)
    for round_ in range(args.rounds):
        for name in names if round_ % 2 == 0 else reversed(names):
            if time.monotonic() > until:
                continue
            load = machine.Load()
            bench.run(name, round_)
            others.append(load.others())
            say(f"round {round_ + 1}/{args.rounds} {name}: others {others[-1]:.0%}")
    found = rows(bench.samples, args.transport)
    facts = {"commit": machine.commit(root), "machine": machine.describe(cores), "transport": args.transport,
             "libraries": bench.libraries, "missing": missing, "failures": bench.failures, "rounds": args.rounds,
             "others": [round(x, 3) for x in others]}
    print(f"ouro over {args.transport} between two ranks that share no memory; ratio: peer's time / ouro's, median of rounds; "
          f"other programs took up to {max(others):.0%} of the processors")
    print(table(found))
    for f in bench.failures:
        print(f"{f['peer']} failed in round {f['round'] + 1}: {f['why']}")
    if args.json:
        args.json.write(report.json_text({**facts, "rows": found}))
    if args.csv:
        args.csv.write(report.csv_text(FIELDS, found))
    wrong = any(s.wrong for s in bench.samples) or any(f["peer"] == "ouro" for f in bench.failures)
    return 1 if wrong else 0
