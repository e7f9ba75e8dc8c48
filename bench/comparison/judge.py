# From samples to rows: medians of round ratios, the best peer, the limit, the target. Pure; tested in tests/bench.
# Used by command.py.
import collections
import dataclasses
import statistics

from comparison import limits, points, settings, targets

LEAST_RATIO = 0.97  # below this ouro is slower than the best peer; above, it may be noise
OTHERS = 0.06  # share of the processors; if other programs took more, a sample does not count


@dataclasses.dataclass(frozen=True)
class Sample:
    """One point of one launch."""

    key: points.Key
    peer: str
    buffer: str  # private or registered
    round: int
    us: float  # 0 or less: below the noise of the subtracted loop; such a sample is not used
    p99_us: float
    modes: tuple  # before and after
    others: float = 0.0
    wrong: int = 0

    @property
    def counts(self):
        return self.modes[0] == self.modes[1] and self.others <= OTHERS and self.us > 0


@dataclasses.dataclass
class Row:
    key: points.Key
    buffer: str
    mode: str
    ouro_us: float | None
    p99_us: float | None
    best_peer: str | None = None
    best_peer_us: float | None = None
    ratio: float | None = None
    limit_share: float | None = None
    bare: str | None = None  # the fastest way of the bare program
    bare_us: float | None = None
    bare_share: float | None = None  # its time / ouro's, median of the rounds
    target: float | None = None
    limit_target: float | None = None
    verdict: str = ""  # met, not met, slower, no target, disturbed, void
    peers: dict = dataclasses.field(default_factory=dict)  # name: median us
    ratios: list = dataclasses.field(default_factory=list)  # of the best peer, one a round
    marks: list = dataclasses.field(default_factory=list)


def by_round(samples):
    return {s.round: s.us for s in samples}


def round_ratios(peer, ouro):
    """Ratios peer / ouro of the rounds that have both; each argument is {round: us}."""
    return [peer[r] / ouro[r] for r in sorted(ouro) if r in peer and ouro[r] > 0]


def best(peers, ouro):
    """(name, its median, ratios) of the peer with the smallest median over the rounds that ouro has; or None."""
    shared = {name: {r: us for r, us in rounds.items() if r in ouro} for name, rounds in peers.items()}
    medians = {name: statistics.median(rounds.values()) for name, rounds in shared.items() if rounds}
    if not medians:
        return None
    name = min(medians, key=lambda n: (medians[n], n))
    return name, medians[name], round_ratios(shared[name], ouro)


def ours(buffer):
    """The key of ouro's samples in a row: (peer, class of buffers)."""
    return ("ouro-4k", "private") if buffer == "private-4k" else ("ouro", buffer)


def rows(samples, probes, cores, l3):
    """All rows, with near and far separate, in the order of their keys. `probes`: mode -> limits of the machine in it."""
    of = collections.defaultdict(list)
    for s in samples:
        if s.us > 0 or s.wrong:
            of[s.key].append(s)
    order = {c: i for i, c in enumerate(points.COLLECTIVES)}
    found = []
    for key in sorted(of, key=lambda k: (order[k.collective], k.ranks, k.dtype, k.method, k.in_place, k.bytes)):
        for buffer in points.BUFFERS:
            found += _rows_of(key, buffer, of[key], probes, cores, l3)
    return found


def _rows_of(key, buffer, samples, probes, cores, l3):
    peer, kind = ours(buffer)
    mine = [s for s in samples if (s.peer, s.buffer) == (peer, kind)]
    if not mine:
        return []
    if any(s.wrong for s in mine):
        return [Row(key, buffer, mine[-1].modes[1], None, None, verdict="void", marks=["ouro's result was wrong"])]
    theirs = [s for s in samples if not s.peer.startswith("ouro") and
              (s.buffer == kind or s.peer != settings.OTHER.name and not settings.is_bare(s.peer))]
    if kind == "registered":  # the bare program may stage what is registered, too
        theirs += [dataclasses.replace(s, peer=f"{s.peer}/staged") for s in samples
                   if settings.is_bare(s.peer) and s.buffer == "private"]
    if buffer == "private-4k":
        theirs = [s for s in theirs if not settings.keeps(s.peer)]
    void = sorted({s.peer for s in theirs if s.wrong})
    theirs = [s for s in theirs if s.peer not in void]
    marks = [f"wrong results of {name}" for name in void]
    good = [s for s in mine if s.counts]
    if not good:
        shaken = all(s.modes[0] != s.modes[1] for s in mine)
        marks.append("the mode changed" if shaken else f"other programs took {max(s.others for s in mine):.0%}")
        mode = statistics.mode(s.modes[1] for s in mine)
        row = _row(key, buffer, mode, mine, theirs, marks, probes, cores, l3)
        row.verdict = "disturbed"
        return [row]
    modes = sorted({s.modes[0] for s in good})
    return [_row(key, buffer, m, [s for s in good if s.modes[0] == m],
                 [s for s in theirs if s.counts and s.modes[0] == m], marks, probes, cores, l3) for m in modes]


def _row(key, buffer, mode, mine, theirs, marks, probes, cores, l3):
    us = statistics.median(s.us for s in mine)
    row = Row(key, buffer, mode, us, statistics.median(s.p99_us for s in mine), marks=list(marks))
    peers = collections.defaultdict(list)
    for s in theirs:
        peers[s.peer].append(s)
    row.peers = {name: statistics.median(s.us for s in of) for name, of in sorted(peers.items())}
    rounds = {name: by_round(of) for name, of in peers.items()}
    if found := best({name: of for name, of in rounds.items() if not settings.is_bare(name)}, by_round(mine)):
        row.best_peer, row.best_peer_us, row.ratios = found
        row.ratio = statistics.median(row.ratios) if row.ratios else None
    if found := best({name: of for name, of in rounds.items() if settings.is_bare(name)}, by_round(mine)):
        row.bare, row.bare_us, shares = found
        row.bare_share = statistics.median(shares) if shares else None
    floor = limits.floor_us(key, buffer, probes.get(mode), cores, l3)
    row.limit_share = floor / us if floor and us > 0 else None
    if row.best_peer != settings.OTHER.name:
        row.target, row.limit_target = targets.ratio(key, buffer), targets.share(key, buffer)
    row.verdict = verdict(row)
    return row


def verdict(row):
    """met: the ratio of the table or 95 % of the limit. slower: behind the best peer by more than noise."""
    near_limit = row.limit_share is not None and row.limit_share >= targets.ENOUGH_OF_LIMIT
    if row.ratio is not None and row.ratio < LEAST_RATIO:
        return "slower"
    if row.target is None or row.ratio is None:
        return "met" if near_limit else "no target"
    return "met" if row.ratio >= row.target or near_limit else "not met"
