# The command bench/compare: arguments, the order of launches, what is printed.
# Used by bench/compare.
import argparse
import os
import pathlib
import shutil
import signal
import sys
import time

from comparison import judge, launch, machine, pairs, plot, points, report, settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPILOG = """filters: --only NAME=VALUE[,VALUE...], any number of times, with NAME one of
  collective all_reduce broadcast all_gather reduce_scatter all_to_all
  ranks      2 4                    bytes   8 64K 16M ...         dtype  float32 bfloat16
  peers      ouro ouro-4k ompi ompi-nocma ompi-sm ompi-sm-tuned ompi-ucx ompi-tuned ompi-tuned-cma
             mpich mpich-posix mpich-tuned gloo (all of its algorithms); ouro always runs
  buffer     private registered private-4k            method  A B C
methods: A application loop (writes its whole input, calls, reads its whole output; that loop without the call is
  subtracted), B call by call (all ranks meet before each), C back to back. bfloat16 and Gloo: method A only
rows: `private` and `registered` run on 2 MiB pages with freed memory kept, as do their peers where named -tuned;
  `private-4k` runs without both, against peers without both. ratio: median over rounds of best peer / ouro in the same
  round. limit: time that the machine allows / time taken. A star marks rows (disturbed) in which no round counts: the
  distance of the cores changed or other programs took more than 6 % of the processors.
exit codes: 0 measured; 1 a wrong result, or ouro failed; 2 arguments, or nothing to run; 130 interrupted"""


def bytes_of(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    return int(text[:-1]) << unit if unit else int(text)


class Filters:
    """The entries of each list that --only selects."""

    PARSE = {"ranks": int, "bytes": bytes_of}
    KNOWN = {"collective": points.COLLECTIVES, "dtype": points.DTYPES, "buffer": points.BUFFERS, "method": points.METHODS,
             "peers": tuple(s.name for s in settings.SETTINGS)}

    def __init__(self, texts):
        self.wanted = {}
        for text in texts:
            name, _, values = text.partition("=")
            if name not in self.KNOWN and name not in self.PARSE or not values:
                raise ValueError(f"--only {text}: wants NAME=VALUE[,VALUE...]; see --help for the names")
            try:
                found = [self.PARSE.get(name, str)(v) for v in values.split(",")]
            except ValueError:
                raise ValueError(f"--only {text}: {name} are whole numbers" + ", as in 8, 64K, 16M" * (name == "bytes")) from None
            unknown = [v for v in found if name in self.KNOWN and v not in self.KNOWN[name]]
            if unknown or any(isinstance(v, int) and v < 1 for v in found):
                raise ValueError(f"--only {text}: not a {name}: {', '.join(map(str, unknown)) or values}")
            self.wanted.setdefault(name, []).extend(found)

    def pick(self, name, given):
        """The selected entries of `given`, in its order; sizes and ranks may also be new ones."""
        if name not in self.wanted:
            return list(given)
        return sorted(set(self.wanted[name])) if name in self.PARSE else [g for g in given if g in self.wanted[name]]


def parse(argv):
    p = argparse.ArgumentParser(prog="bench/compare", description="ouro beside Open MPI, MPICH and Gloo on this machine.",
                                epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=str(ROOT / "build"), help="build directory with bin/compare_* (default: build/)")
    p.add_argument("--against", metavar="BUILD", help="the only peer is ouro of this build directory, named `other`: old beside new")
    p.add_argument("--quick", action="store_true", help="method A, float32, up to 16 MiB, the fastest peers, short blocks: minutes")
    p.add_argument("--sweep", action="store_true", help="all powers of two from 8 B to 256 MiB")
    p.add_argument("--only", action="append", default=[], metavar="NAME=VALUES", help="see below")
    p.add_argument("--rounds", type=int, default=3, help="each setting runs once in a round (default 3)")
    p.add_argument("--blocks", type=int, help="blocks of method A (default 7, quick 3)")
    p.add_argument("--block-ms", type=float, help="longest block wanted; slow peers make fewer calls (default 150, quick 30)")
    p.add_argument("--transport", choices=("tcp", "ucx"),
                   help="instead: two ranks that share no memory, beside ucx_perftest, Open MPI over TCP and a raw stream")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--csv", metavar="FILE")
    p.add_argument("--plot", metavar="FILE.svg", help="latency and bus bandwidth over size")
    args = p.parse_args(argv)
    if args.transport and (args.sweep or args.only or args.plot or args.against):
        p.error("--transport goes without --sweep, --only, --plot and --against")
    if args.against and any(text.startswith("peers=") for text in args.only):
        p.error("--against goes without --only peers")
    try:
        args.filters = Filters(args.only)
    except ValueError as e:
        p.error(str(e))
    if args.rounds < 1 or args.blocks is not None and args.blocks < 1:
        p.error("--rounds and --blocks are at least 1")
    if args.block_ms is not None and not 0.01 <= args.block_ms <= 60_000:
        p.error("--block-ms is 0.01 to 60000")
    args.blocks = args.blocks or (3 if args.quick else 7)
    args.block_ms = args.block_ms or (30.0 if args.quick else 150.0)
    for name in ("json", "csv", "plot"):
        path = getattr(args, name)
        try:
            setattr(args, name, report.Output(path) if path else None)
        except OSError as e:
            p.error(f"--{name} {path}: cannot be written: {e.strerror}")
    return args


def say(text):
    print(text, file=sys.stderr, flush=True)


def build_of(setting, args):
    return args.against if setting.name == settings.OTHER.name else args.build


def available(args):
    """Settings that can run, and a line for each family that cannot."""
    wanted = [s for s in settings.SETTINGS if not args.quick or s.quick]
    if args.against:
        wanted = [s for s in wanted if s.name == "ouro"] + [settings.OTHER]
    if "peers" in args.filters.wanted:
        names = args.filters.wanted["peers"]
        wanted = [s for s in settings.SETTINGS if s.name in (*names, "ouro") or s.family == "gloo" and "gloo" in names]
    if "private-4k" not in args.filters.pick("buffer", points.BUFFERS):
        wanted = [s for s in wanted if s.name != "ouro-4k"]
    missing = {}
    for s in wanted:
        program, launcher = pathlib.Path(build_of(s, args)) / "bin" / f"compare_{s.family}", settings.LAUNCHERS.get(s.family)
        if launcher and not shutil.which(launcher) or not program.exists():
            install = settings.PACKAGES.get(s.family)
            missing[s.family] = f"without {s.family}: no {program}" + (
                f"; install {install} (Debian), then build" if install else "; build it")
    return [s for s in wanted if s.family not in missing], missing


def plan(args, usable, cores):
    """Launches in order: (round, group of keys, setting, tasks)."""
    f = args.filters
    sizes = f.pick("bytes", points.SWEEP if args.sweep else points.QUICK_SIZES if args.quick else points.SIZES)
    dtypes = f.pick("dtype", points.DTYPES[:1] if args.quick else points.DTYPES)
    methods = f.pick("method", points.METHODS[:1] if args.quick else points.METHODS)
    collectives = f.pick("collective", points.COLLECTIVES)
    buffers = f.pick("buffer", points.BUFFERS)
    launches = []
    for r in range(args.rounds):
        for n in f.pick("ranks", (2, 4)):
            # Peers of one group run within seconds of each other. A launch costs about a second, so a quick run has
            # larger groups.
            for group in [collectives] if args.quick else [[c] for c in collectives]:
                keys = points.keys(n, group, sizes, dtypes, methods)
                for s in usable if r % 2 == 0 else usable[::-1]:
                    tasks = points.tasks(s, keys, buffers)
                    if tasks and (s.crowded or n <= len(cores)):
                        launches.append((r, n, s, tasks))
    return launches


class Run:
    def __init__(self, args, cores):
        self.args, self.cores = args, cores
        self.samples, self.failures, self.libraries, self.probes = [], [], {}, {}
        self.history = []

    def probe(self):
        """Keeps the best value for each mode: a disturbance only makes a probe slower."""
        found = machine.probe(self.args.build, self.cores)
        mode = machine.mode(found["handoff_ns"])
        self.history.append(found)
        best = self.probes.setdefault(mode, dict(found))
        for name, value in found.items():
            best[name] = (min if name == "handoff_ns" else max)(best[name], value)

    def launch(self, round_, ranks, setting, tasks):
        found = []

        def on_point(answer):
            if "library" in answer:
                self.libraries[setting.name] = answer
            elif "us" in answer:
                found.append((tasks[answer["point"]], answer))

        def make(arguments):
            a = self.args
            every = [*arguments, "--ranks", str(ranks), "--cores", ",".join(map(str, self.cores)),
                     "--blocks", str(a.blocks), "--block-ms", str(a.block_ms)]
            return settings.commands(setting, build_of(setting, a), ranks, self.cores, every)

        load = machine.Load()
        why = launch.run(make, settings.environment(setting, os.environ), [t.line for t in tasks],
                         min(1800, 30 + 10 * len(tasks)), on_point)
        others = load.others()
        if why and len(found) < len(tasks):
            why = f"at point {len(found) + 1} ({tasks[len(found)].line}): {why}"
        if why:
            self.failures.append({"setting": setting.name, "ranks": ranks, "round": round_, "why": why})
            say(f"  {setting.name}, {ranks} ranks: {why}")
        for task, a in found:
            modes = machine.mode(a["handoff_before_ns"]), machine.mode(a["handoff_after_ns"])
            self.samples.append(judge.Sample(task.key, setting.name, task.buffer, round_, a["us"], a["p99_us"], modes,
                                             others, a["wrong"]))
        return others


def measure(run, launches):
    began, done, all_points = time.monotonic(), 0, sum(len(t) for _, _, _, t in launches)
    run.probe()
    for i, (round_, ranks, setting, tasks) in enumerate(launches):
        seen = {s.modes[1] for s in run.samples[-1:]}  # the machine may be in a mode that was not probed yet
        if i and round_ != launches[i - 1][0] or seen - set(run.probes):
            run.probe()
        machine.wait_quiet(1.0)
        started = time.monotonic()
        others = run.launch(round_, ranks, setting, tasks)
        took = time.monotonic() - started
        done += len(tasks)
        left = (time.monotonic() - began) * (all_points - done) / done
        what = "+".join(dict.fromkeys(t.key.collective for t in tasks))
        say(f"[{i + 1}/{len(launches)}] round {round_ + 1}, {ranks} ranks, {setting.name}: {what}, "
            f"{len(tasks)} points in {took:.1f} s, others {others:.0%}, {left / 60:.1f} min left")
    run.probe()


def main(argv):
    args = parse(argv)
    try:
        return pairs.main(args, ROOT) if args.transport else collectives(args, argv)
    finally:
        for file in filter(None, (args.json, args.csv, args.plot)):
            file.close()


def collectives(args, argv):
    cores = machine.cores()
    usable, missing = available(args)
    for line in missing.values():
        say(line)
    if "ouro" in missing or not (pathlib.Path(args.build) / "bin" / "compare_probe").exists():
        say(f"build first, in {ROOT}: cmake --preset bench && cmake --build --preset bench; then --build build-bench")
        return 2
    launches = plan(args, usable, cores)
    if not launches:
        say("nothing to measure: the filters leave no point")
        return 2
    launch.adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored: in the background of a script
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits cleanly, as with Ctrl-C
    run = Run(args, cores)
    interrupted = False
    try:
        measure(run, launches)
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted: what follows is from the launches that ended")
    rows = judge.rows(run.samples, run.probes, len(cores), machine.l3_bytes())
    facts = {
        "commit": machine.commit(ROOT), "machine": machine.describe(cores), "probes": run.probes,
        "probe_history": run.history, "libraries": run.libraries, "missing": list(missing.values()),
        "failures": run.failures, "rounds": args.rounds, "arguments": argv,
    }
    for line in missing.values():
        print(line)
    for mode, p in run.probes.items():
        print(f"{mode}: " + ", ".join(f"{k} {v:g}" for k, v in p.items()))
    print(report.table(rows))
    if args.json:
        args.json.write(report.json_text(report.document(rows, facts)))
    if args.csv:
        args.csv.write(report.csv_text(*report.csv_rows(rows)))
    if args.plot:
        args.plot.write(plot.page(rows, facts))
    if interrupted:
        return 130
    wrong = any(s.wrong for s in run.samples) or any(f["setting"].startswith("ouro") for f in run.failures)
    return 1 if wrong else 0
