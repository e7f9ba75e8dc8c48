# One page of curves, hand-written SVG: time and bus bandwidth over size, a column for each collective.
# Used by command.py.
import collections
import html
import math

from comparison import points, report, settings

PANEL_W, PANEL_H, LEFT, TOP, GAP_X, GAP_Y = 190, 150, 62, 92, 48, 46
SERIES = (  # name, colour, dash
    ("ouro, private buffers", "#0b5fa5", ""),
    ("ouro, registered buffers", "#0b5fa5", "5 3"),
    ("best of MPI", "#c2410c", ""),
    ("best of Gloo", "#6b7280", "2 3"),
)


def bus_bandwidth(key, us):
    """GB/s as nccl-tests defines it: comparable with the rate of one rank's links, for any collective."""
    n = key.ranks
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(key.collective, (n - 1) / n)
    return factor * key.bytes / us / 1000


def curves(rows):
    """{(collective, in place, ranks): (mode, {series: [(key, us)]})} of the first method and type that exist, each in the
    mode that has most of its rows; and the choice."""
    if not rows:
        return {}, ""
    method, dtype = min(r.key.method for r in rows), max(r.key.dtype for r in rows)
    panels = collections.defaultdict(list)
    for r in sorted(rows, key=lambda r: r.key.bytes):
        if (r.key.method, r.key.dtype) == (method, dtype):
            panels[r.key.collective, r.key.in_place, r.key.ranks].append(r)
    return {name: _lines(some) for name, some in panels.items()}, f"method {method}, {dtype}"


def _lines(rows):
    mode = collections.Counter(r.mode for r in rows).most_common(1)[0][0]
    lines = collections.defaultdict(list)
    for r in (r for r in rows if r.mode == mode):
        if r.buffer in ("private", "registered") and r.ouro_us:
            lines[SERIES[r.buffer == "registered"][0]].append((r.key, r.ouro_us))
        if r.buffer == "private":
            for series, gloo in (("best of MPI", False), ("best of Gloo", True)):
                times = [us for name, us in r.peers.items() if name.startswith("gloo") == gloo and not settings.is_bare(name)]
                if times:
                    lines[series].append((r.key, min(times)))
    return mode, lines


class Axis:
    """A logarithmic axis from a to b (a power of ten below and above the values) over `length` points."""

    def __init__(self, values, length):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.length = length

    def at(self, value):
        return (math.log10(value) - self.low) / (self.high - self.low) * self.length

    def ticks(self):
        step = 1 if self.high - self.low <= 6 else 2
        return range(self.low, self.high + 1, step)


def text(x, y, words, size=10, anchor="start", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {extra}>{html.escape(words)}</text>'


def power(n):
    return f"{10 ** n:g}" if -3 <= n < 4 else f"1e{n}"


def panel(x, y, lines, value, sizes, ticks_y):
    """One diagram at (x, y): `lines` is {series: [(key, us)]}, value(key, us) the plotted value."""
    drawn = {s: [(k.bytes, value(k, us)) for k, us in line if us > 0] for s, line in lines.items()}
    values = [v for line in drawn.values() for _, v in line]
    out = [f'<rect x="{x}" y="{y}" width="{PANEL_W}" height="{PANEL_H}" fill="none" stroke="#9ca3af"/>']
    if not values:
        return out
    low, high = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)
    axis = Axis(values, PANEL_H)

    def px(size):
        return x + 6 + (math.log2(size) - low) / (high - low) * (PANEL_W - 12)

    for t in axis.ticks():
        py = y + PANEL_H - axis.at(10.0**t)
        out.append(f'<line x1="{x}" y1="{py:.1f}" x2="{x + PANEL_W}" y2="{py:.1f}" stroke="#e5e7eb"/>')
        out.append(text(x - 4, py + 3, power(t), 9, "end"))
    for size in sizes[:: max(1, math.ceil(len(sizes) / 6))]:
        out.append(f'<line x1="{px(size):.1f}" y1="{y}" x2="{px(size):.1f}" y2="{y + PANEL_H}" stroke="#f3f4f6"/>')
        out.append(text(px(size), y + PANEL_H + 12, report.size_text(size).replace("iB", "").replace(" ", ""), 8, "middle"))
    for name, colour, dash in SERIES:
        line = drawn.get(name, [])
        at = [(px(b), y + PANEL_H - axis.at(v)) for b, v in line]
        if len(at) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in at]
    out.append(text(x - 34, y + PANEL_H / 2, ticks_y, 9, "middle", f'transform="rotate(-90 {x - 34} {y + PANEL_H / 2})"'))
    return out


def page(rows, facts):
    found, chosen = curves(rows)
    columns = [(c, p) for c in points.COLLECTIVES for p in points.places(c) if any(k[:2] == (c, p) for k in found)]
    ranks = sorted({k[2] for k in found})
    sizes = sorted({key.bytes for _, lines in found.values() for line in lines.values() for key, _ in line})
    width = LEFT + max(len(columns), 3) * (PANEL_W + GAP_X)
    height = TOP + 2 * len(ranks) * (PANEL_H + GAP_Y) + 10
    m = facts["machine"]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" fill="#111827">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(20, 28, "ouro beside MPI and Gloo on one machine", 18),
        text(20, 46, f"{m['processor']}, {m['cores']} cores, kernel {m['kernel']}; {chosen}; rounds: {facts['rounds']}; "
                     f"commit {facts['commit']}", 11),
    ]
    for i, (name, colour, dash) in enumerate(SERIES):
        x = 20 + i * 190
        out.append(f'<line x1="{x}" y1="62" x2="{x + 28}" y2="62" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(text(x + 34, 66, name, 11))
    for column, (collective, in_place) in enumerate(columns):
        x = LEFT + column * (PANEL_W + GAP_X)
        for i, n in enumerate(ranks):
            mode, lines = found.get((collective, in_place, n), ("", {}))
            place = " in place" if in_place and len(points.places(collective)) > 1 else ""
            title = f"{collective}{place}, {n} ranks" + (f", {mode}" if mode else "")
            y = TOP + 2 * i * (PANEL_H + GAP_Y)
            out.append(text(x, y - 5, title, 11, extra='font-weight="bold"'))
            out += panel(x, y, lines, lambda k, us: us, sizes, "us")
            out += panel(x, y + PANEL_H + GAP_Y, lines, bus_bandwidth, sizes, "bus GB/s")
    return "\n".join([*out, "</svg>", ""])

