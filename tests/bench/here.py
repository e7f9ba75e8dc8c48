# Finds the package under test and makes samples. Used by the tests beside it.
import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from comparison import judge, points  # noqa: E402  (its folder is found only now)

L3 = 32 << 20
PROBE = {"handoff_ns": 50.0, "read_gbs": 50.0, "copy_gbs": 60.0, "sum_gbs": 55.0, "spread_gbs": 58.0, "in_place_gbs": 70.0,
         "copy_in_gbs": 100.0, "read_peer_gbs": 80.0, "store_gbs": 40.0}
NEAR, FAR = ("near", "near"), ("far", "far")


def key(collective="all_reduce", ranks=2, size=1 << 20, dtype="float32", method="A", in_place=False):
    return points.Key(collective, ranks, size, dtype, method, in_place)


def sample(peer, round_, us, k=None, buffer="private", modes=NEAR, **more):
    return judge.Sample(k or key(), peer, buffer, round_, us, 2 * us, modes, **more)


def rows(samples, cores=2):
    return judge.rows(samples, {"near": PROBE, "far": PROBE}, cores, L3)
