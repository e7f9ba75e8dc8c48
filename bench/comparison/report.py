# Rows as a table, as JSON, as CSV.
# Used by command.py; the JSON rows are tested in tests/bench.
import csv
import io
import json
import pathlib

from comparison import points

FIELDS = ("collective", "ranks", "bytes", "dtype", "buffer", "method", "mode", "in_place", "ouro_us", "p99_us", "best_peer",
          "best_peer_us", "ratio", "limit_share", "bare", "bare_us", "bare_share")


def rounded(x, digits=4):
    return None if x is None else float(f"{x:.{digits}g}")


def plain(row):
    """The row as a flat dictionary with exactly the keys of FIELDS."""
    k = row.key
    return {
        "collective": k.collective, "ranks": k.ranks, "bytes": k.bytes, "dtype": k.dtype, "buffer": row.buffer,
        "method": k.method, "mode": row.mode, "in_place": k.in_place, "ouro_us": rounded(row.ouro_us),
        "p99_us": rounded(row.p99_us), "best_peer": row.best_peer, "best_peer_us": rounded(row.best_peer_us),
        "ratio": rounded(row.ratio), "limit_share": rounded(row.limit_share),
        "bare": row.bare, "bare_us": rounded(row.bare_us), "bare_share": rounded(row.bare_share),
    }


def judgement(row):
    return {
        "target": row.target, "limit_target": row.limit_target, "verdict": row.verdict, "rounds": len(row.ratios),
        "round_ratios": [rounded(x) for x in row.ratios], "marks": row.marks,
    }


def document(rows, facts):
    """`rows`, and beside them, at the same index, all peers' medians (`peers`) and the verdict (`judgements`)."""
    return {
        **facts,
        "rows": [plain(r) for r in rows],
        "peers": [{name: rounded(us) for name, us in r.peers.items()} for r in rows],
        "judgements": [judgement(r) for r in rows],
    }


def json_text(found):
    return json.dumps(found, indent=1) + "\n"


def csv_text(fields, found):
    out = io.StringIO()
    sheet = csv.DictWriter(out, fields)
    sheet.writeheader()
    sheet.writerows(found)
    return out.getvalue()


def csv_rows(rows):
    """Fields and rows of a CSV file."""
    found = []
    for r in rows:
        j = judgement(r)
        found.append({**plain(r), **{k: j[k] for k in ("target", "limit_target", "verdict")}, "marks": "; ".join(r.marks)})
    return [*FIELDS, "target", "limit_target", "verdict", "marks"], found


class Output:
    """A file that is opened before the measurement, so that no measurement is lost, and written after it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.is_new = not self.path.exists()
        self.file = open(path, "a", newline="")  # the old contents stay until there are new ones

    def write(self, text):
        if self.path.is_file():  # not a terminal or /dev/null
            self.file.truncate(0)
        self.file.write(text)
        self.is_new = False

    def close(self):
        self.file.close()
        if self.is_new:
            self.path.unlink(missing_ok=True)


def size_text(n):
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if n >= 1 << shift and n % (1 << shift) == 0:
            return f"{n >> shift} {unit}"
    return f"{n} B"


def time_text(us):
    if us is None:
        return "-"
    return f"{us:.3f}" if us < 10 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


COLUMNS = ("collective", "ranks", "bytes", "dtype", "buffer", "method", "mode", "ouro us", "p99 us", "best peer", "peer us",
           "ratio", "target", "limit", "target", "bare", "verdict")


def table(rows):
    lines = []
    for r in rows:
        k = r.key
        name = k.collective + (" in place" if k.in_place and len(points.places(k.collective)) > 1 else "")
        times = f"{r.ratio:.2f}x" if r.ratio is not None else "-"
        lines.append((
            name, str(k.ranks), size_text(k.bytes), k.dtype, r.buffer, k.method, r.mode + ("*" if r.marks else ""),
            time_text(r.ouro_us), time_text(r.p99_us), r.best_peer or "-", time_text(r.best_peer_us), times,
            f"{r.target:g}x" if r.target else "-", f"{r.limit_share:.0%}" if r.limit_share else "-",
            f"{r.limit_target:.0%}" if r.limit_target else "-", f"{r.bare_share:.0%}" if r.bare_share else "-", r.verdict))
    width = [max(len(line[i]) for line in (COLUMNS, *lines)) for i in range(len(COLUMNS))]
    left = {0, 3, 4, 6, 9, 16}

    def show(line):
        return "  ".join(t.ljust(w) if i in left else t.rjust(w) for i, (t, w) in enumerate(zip(line, width))).rstrip()

    text = [show(COLUMNS), *map(show, lines)]
    marked = sorted({m for r in rows for m in r.marks})
    if marked:
        text.append("* marked: " + "; ".join(marked))
    count = {v: sum(r.verdict == v for r in rows) for v in ("met", "not met", "slower", "no target", "disturbed", "void")}
    text.append(f"{len(rows)} rows: " + ", ".join(f"{n} {v}" for v, n in count.items() if n))
    return "\n".join(text)
