# Medians of round ratios, the best peer, what counts, verdicts.
import unittest

import here
from comparison import judge, plot


class Ratios(unittest.TestCase):
    def test_ratio_is_of_the_same_round(self):
        # Medians apart would say 10/10 = 1; each round says 2 or more.
        ouro, peer = {0: 5.0, 1: 10.0, 2: 50.0}, {0: 10.0, 1: 30.0, 2: 100.0}
        self.assertEqual(judge.round_ratios(peer, ouro), [2.0, 3.0, 2.0])

    def test_rounds_that_one_side_lacks_are_left_out(self):
        self.assertEqual(judge.round_ratios({1: 6.0, 2: 8.0}, {0: 1.0, 1: 3.0}), [2.0])

    def test_best_peer_has_the_smallest_median_not_the_smallest_time(self):
        name, us, ratios = judge.best({"lucky": {0: 1.0, 1: 9.0, 2: 9.0}, "steady": {0: 5.0, 1: 5.0, 2: 5.0}}, {0: 5.0, 1: 2.5, 2: 5.0})
        self.assertEqual((name, us, ratios), ("steady", 5.0, [1.0, 2.0, 1.0]))

    def test_no_shared_round_no_peer(self):
        self.assertIsNone(judge.best({"late": {3: 1.0}}, {0: 1.0}))
        self.assertIsNone(judge.best({}, {0: 1.0}))


class Rows(unittest.TestCase):
    def test_median_of_round_ratios(self):
        samples = [here.sample("ouro", r, us) for r, us in enumerate((10, 20, 10))]
        samples += [here.sample("ompi-tuned", r, us) for r, us in enumerate((20, 30, 40))]
        (row,) = here.rows(samples)
        self.assertEqual((row.ouro_us, row.best_peer, row.best_peer_us, row.ratio), (10, "ompi-tuned", 30, 2.0))
        self.assertEqual((row.mode, row.p99_us, row.marks, row.verdict), ("near", 20, [], "met"))

    def test_near_and_far_are_rows_of_their_own(self):
        samples = [here.sample("ouro", 0, 10), here.sample("ouro", 1, 40, modes=here.FAR)]
        samples += [here.sample("mpich", 0, 20), here.sample("mpich", 1, 50, modes=here.FAR)]
        far, near = here.rows(samples)
        self.assertEqual((far.mode, far.ratio, near.mode, near.ratio), ("far", 1.25, "near", 2.0))

    def test_a_peer_of_the_other_mode_is_no_peer(self):
        (row,) = here.rows([here.sample("ouro", 0, 10), here.sample("mpich", 0, 20, modes=here.FAR)])
        self.assertIsNone(row.best_peer)

    def test_another_build_is_compared_with_the_same_buffers_and_has_no_target(self):
        samples = [here.sample(peer, 0, us, buffer=b) for peer, b, us in
                   (("ouro", "private", 1000), ("ouro", "registered", 500), ("other", "private", 900), ("other", "registered", 1000))]
        private, registered = here.rows(samples)
        self.assertEqual((private.ratio, private.verdict, private.target), (0.9, "slower", None))
        self.assertEqual((registered.ratio, registered.verdict, registered.limit_target), (2.0, "no target", None))

    def test_disturbed_samples_do_not_count(self):
        samples = [here.sample("ouro", 0, 10), here.sample("ouro", 1, 90, others=0.07), here.sample("ouro", 2, 80, modes=("near", "far"))]
        (row,) = here.rows(samples)
        self.assertEqual((row.ouro_us, row.marks), (10, []))

    def test_rows_without_a_quiet_round_are_marked(self):
        (row,) = here.rows([here.sample("ouro", 0, 10, others=0.5), here.sample("ompi", 0, 20, others=0.5)])
        self.assertEqual((row.ratio, row.marks, row.verdict), (2.0, ["other programs took 50%"], "disturbed"))
        (row,) = here.rows([here.sample("ouro", 0, 10, modes=("near", "far"))])
        self.assertEqual(row.marks, ["the mode changed"])

    def test_times_below_the_noise_are_no_times(self):
        (row,) = here.rows([here.sample("ouro", 0, 10), here.sample("ompi", 0, -1), here.sample("mpich", 0, 30)])
        self.assertEqual(row.best_peer, "mpich")

    def test_a_wrong_result_of_ouro_voids_the_row(self):
        (row,) = here.rows([here.sample("ouro", 0, 10), here.sample("ouro", 1, 10, wrong=3), here.sample("ompi", 0, 20)])
        self.assertEqual((row.verdict, row.ouro_us, row.ratio), ("void", None, None))

    def test_a_wrong_result_of_a_peer_removes_it(self):
        samples = [here.sample("ouro", 0, 10), here.sample("ompi", 0, 11, wrong=1), here.sample("mpich", 0, 30)]
        (row,) = here.rows(samples)
        self.assertEqual((row.best_peer, row.marks), ("mpich", ["wrong results of ompi"]))

    def test_four_kib_rows_have_peers_of_their_kind(self):
        samples = [here.sample("ouro", 0, 10), here.sample("ouro-4k", 0, 20), here.sample("ouro", 0, 5, buffer="registered")]
        samples += [here.sample("ompi-tuned", 0, 15), here.sample("ompi", 0, 60), here.sample("gloo-bcube", 0, 12)]
        private, registered, small = here.rows(samples)
        self.assertEqual([(r.buffer, r.best_peer) for r in (private, registered, small)],
                         [("private", "gloo-bcube"), ("registered", "gloo-bcube"), ("private-4k", "ompi")])
        self.assertEqual((small.ratio, small.target), (3.0, None))

    def test_the_bare_program_is_a_limit_and_no_peer(self):
        samples = [here.sample("ouro", r, us) for r, us in enumerate((10, 20, 10))]
        samples += [here.sample("bare-rep", r, us) for r, us in enumerate((8, 10, 5))]
        samples += [here.sample("bare-plain", r, 50) for r in range(3)] + [here.sample("ompi", r, 30) for r in range(3)]
        (row,) = here.rows(samples)
        self.assertEqual((row.best_peer, row.ratio), ("ompi", 3.0))
        self.assertEqual((row.bare, row.bare_us, row.bare_share), ("bare-rep", 8, 0.5))
        ((_, lines),) = plot.curves([row])[0].values()
        self.assertEqual(lines["best of MPI"], [(row.key, 30)])

    def test_the_bare_program_is_compared_with_the_same_buffers(self):
        samples = [here.sample(peer, 0, us, buffer=b) for peer, b, us in
                   (("ouro", "private", 20), ("ouro", "registered", 10), ("bare-rep", "private", 15), ("bare-rep", "registered", 9))]
        self.assertEqual([(r.bare, r.bare_share) for r in here.rows(samples)], [("bare-rep", 0.75), ("bare-rep", 0.9)])

    def test_the_bare_program_may_stage_registered_buffers(self):
        samples = [here.sample(peer, 0, us, buffer=b) for peer, b, us in
                   (("ouro", "registered", 10), ("bare-rep", "private", 8), ("bare-rep", "registered", 9))]
        (row,) = here.rows(samples)
        self.assertEqual((row.bare, row.bare_share), ("bare-rep/staged", 0.8))


class Verdicts(unittest.TestCase):
    def row(self, ratio, target=1.4, share=None):
        return judge.Row(here.key(), "private", "near", 10.0, 10.0, ratio=ratio, target=target, limit_share=share)

    def test_verdicts(self):
        for ratio, target, share, expected in (
            (1.4, 1.4, None, "met"), (1.39, 1.4, 0.94, "not met"), (1.2, 1.4, 0.95, "met"), (0.96, 1.4, 0.99, "slower"),
            (0.97, 1.0, 0.5, "not met"), (2.0, None, None, "no target"), (None, 1.4, None, "no target"), (None, 1.4, 0.96, "met"),
        ):
            with self.subTest(ratio=ratio, target=target, share=share):
                self.assertEqual(judge.verdict(self.row(ratio, target, share)), expected)


if __name__ == "__main__":
    unittest.main()
