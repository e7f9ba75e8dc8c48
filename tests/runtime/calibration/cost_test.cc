// The predicted times of flows for a record, and the rows that follow from them.
#include "runtime/plan/cost.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

double ns(const Calibration& c, Collective op, Algorithm a, int ranks, std::size_t bytes) {
  return predicted_ns(c, {.collective = op, .algorithm = a, .ranks = ranks, .bytes = bytes}).value_or(-1);
}

TEST(Cost, ChargesEachStep) {
  const Calibration c = simple();
  // The post, the hand-off, reading the other rank's post, and reading one's own, half of a copy.
  EXPECT_DOUBLE_EQ(ns(c, Collective::all_reduce, Algorithm::oneshot, 2, 4096),
                   kCallNs + 4096 + 100 + 8192 + 2048);
  // The same with three other ranks, where each further line adds half a hand-off.
  EXPECT_DOUBLE_EQ(ns(c, Collective::all_reduce, Algorithm::oneshot, 4, 4096),
                   kCallNs + 4096 + 200 + 3 * 8192 + 2048);
  // Posting the other half, reducing and posting one's own half, fetching the other half.
  EXPECT_DOUBLE_EQ(ns(c, Collective::all_reduce, Algorithm::direct, 2, 8192),
                   kCallNs + 4096 + (100 + 8192 + 2048) + 4096 + (100 + 8192));
  // Pull: the cost of asking, two copies out of the other process, a reduction that reads two chunks and
  // writes one, and two barriers.
  EXPECT_DOUBLE_EQ(ns(c, Collective::all_reduce, Algorithm::pull, 2, 128 * KiB),
                   kCallNs + 2 * 9096 + 100 + 2 * (5'000 + 64.0 * KiB) + 96 * KiB + 2 * 100);
}

TEST(Cost, CopiesOfTwoCoresAtOnceTakeLonger) {
  const Calibration c = simple();
  Calibration shared = c;
  shared.pair[0].together = {2 * 64 * KiB, 3 * 2 * 64 * KiB},
  shared.pair[0].pull_together = 20'000 + 4 * 64 * KiB;
  const auto factor = [&](Collective op, Algorithm a, int ranks, std::size_t bytes, double without) {
    return (ns(shared, op, a, ranks, bytes) - without) / (ns(c, op, a, ranks, bytes) - without);
  };
  // Per byte: two nanoseconds to write for one, six to read for two, and a half to read one's own as before.
  EXPECT_DOUBLE_EQ(factor(Collective::all_reduce, Algorithm::oneshot, 2, 64 * KiB, kCallNs + 100), 8.5 / 3.5);
  EXPECT_DOUBLE_EQ(factor(Collective::all_reduce, Algorithm::oneshot, 2, 4 * KiB, 0),
                   1);  // finished before the other starts
  // One side copies out of the root's buffer, and if there is one reader nothing runs beside it.
  EXPECT_DOUBLE_EQ(factor(Collective::broadcast, Algorithm::zerocopy, 2, 64 * KiB, 0), 1);
  EXPECT_DOUBLE_EQ(factor(Collective::broadcast, Algorithm::pull, 2, 64 * KiB, 0), 1);
  EXPECT_GT(factor(Collective::broadcast, Algorithm::zerocopy, 3, 64 * KiB, 0), 2);
  EXPECT_GT(factor(Collective::all_gather, Algorithm::pull, 2, 64 * KiB, 0), 1.5);
  shared.pair[0].together = {1, 1}, shared.pair[0].pull_together = 1;  // two together are not faster than one
  EXPECT_DOUBLE_EQ(factor(Collective::all_reduce, Algorithm::oneshot, 2, 64 * KiB, 0), 1);
}

/// A root that has room posts for the next call meanwhile; with more rounds than slots one side waits once.
TEST(Cost, BroadcastPostsOverlapReadsWhileSlotsAreFree) {
  const Calibration c = simple();
  EXPECT_DOUBLE_EQ(ns(c, Collective::broadcast, Algorithm::direct, 2, 64 * KiB), kCallNs + 100 + 128 * KiB);
  EXPECT_DOUBLE_EQ(ns(c, Collective::broadcast, Algorithm::direct, 2, 512 * KiB),
                   kCallNs + 4 * (100 + 256.0 * KiB));
  EXPECT_DOUBLE_EQ(ns(c, Collective::broadcast, Algorithm::direct, 2, MiB),
                   kCallNs + 8 * (100 + 256.0 * KiB) + 128 * KiB);
  const double eight = ns(c, Collective::broadcast, Algorithm::direct, 2, MiB),
               hundreds = ns(c, Collective::broadcast, Algorithm::direct, 2, 64 * MiB);
  EXPECT_LT(hundreds, 64 * eight);
  EXPECT_GT(hundreds, 50 * eight);
}

/// What a peer has read costs its owner more when the application next writes there; what a peer has written,
/// when the application next reads it.
TEST(Cost, LaterAccessesToMemoryThatPeersTouchedAreCharged) {
  const Calibration c = simple();
  Calibration dear = c;
  set_accesses(dear.pair[0].stores, 5);
  int ranks = 2;
  const auto extra = [&](Collective op, Algorithm a, bool in_place) {
    CostQuery q{.collective = op, .algorithm = a, .ranks = ranks, .bytes = 64 * KiB, .in_place = in_place};
    const double call = *predicted_ns(dear, q) - *predicted_ns(c, q);
    // By pull, what the call itself stores has been read by the peers after the call before.
    const bool results = op == Collective::all_reduce && a == Algorithm::pull;
    EXPECT_DOUBLE_EQ(call, results ? 4 * 32 * KiB : 0);
    q.afterwards = true;
    return *predicted_ns(dear, q) - *predicted_ns(c, q) - call;
  };
  EXPECT_DOUBLE_EQ(extra(Collective::reduce_scatter, Algorithm::zerocopy, false), 4 * 64 * KiB);
  EXPECT_DOUBLE_EQ(extra(Collective::all_to_all, Algorithm::pull, false), 4 * 64 * KiB);
  EXPECT_DOUBLE_EQ(extra(Collective::all_reduce, Algorithm::zerocopy, false), 4 * 32 * KiB);
  EXPECT_DOUBLE_EQ(extra(Collective::all_reduce, Algorithm::zerocopy, true), 0) << "the peer writes it";
  EXPECT_DOUBLE_EQ(extra(Collective::all_gather, Algorithm::zerocopy, false), 0)
      << "it is written to the peer";
  EXPECT_DOUBLE_EQ(extra(Collective::reduce_scatter, Algorithm::direct, false), 0) << "the peer reads a post";
  EXPECT_DOUBLE_EQ(extra(Collective::all_reduce, Algorithm::pull, true), 4 * 32 * KiB) << "nobody writes it";
  ranks = 4;  // three read the one block, three blocks are read by one each
  EXPECT_DOUBLE_EQ(extra(Collective::all_gather, Algorithm::pull, false), 4 * 64 * KiB);
  EXPECT_DOUBLE_EQ(extra(Collective::all_to_all, Algorithm::pull, false), 3 * 4 * 64 * KiB);
  // Written to the peer's output in a nanosecond a byte; the peer's application reads it in two, not one.
  const CostQuery gather{.collective = Collective::all_gather,
                         .algorithm = Algorithm::zerocopy,
                         .bytes = 64 * KiB,
                         .afterwards = true};
  EXPECT_DOUBLE_EQ(*predicted_ns(c, gather),
                   ns(c, Collective::all_gather, Algorithm::zerocopy, 2, 64 * KiB) + 64 * KiB);
  set_accesses(dear.pair[0].loads, 5);  // measured as an application reads, it loses four
  EXPECT_DOUBLE_EQ(*predicted_ns(dear, gather),
                   ns(c, Collective::all_gather, Algorithm::zerocopy, 2, 64 * KiB) + 4 * 64 * KiB);
}

/// From 3 MiB on the figure of large copies counts, whether it is higher or lower; from 1 MiB on a part of
/// it.
TEST(Cost, LargeBuffersAreChargedByLargeCopyFigures) {
  const Calibration c = simple();
  Calibration other = c;
  const auto per_byte = [&](Collective op, Algorithm a, std::size_t bytes) {
    return (ns(other, op, a, 2, bytes) - ns(c, op, a, 2, bytes)) / static_cast<double>(bytes);
  };
  const auto staged = [&](std::size_t bytes) {
    return per_byte(Collective::all_reduce, Algorithm::oneshot, bytes);
  };
  other.pair[0].large = {static_cast<std::uint32_t>(3 * kLargeBytes / 2),
                         static_cast<std::uint32_t>(kLargeBytes)};
  EXPECT_DOUBLE_EQ(staged(512 * KiB), 0);  // two of them are 1 MiB
  EXPECT_NEAR(staged(MiB), (0.5 - 1) / 2, 1e-3);
  EXPECT_NEAR(staged(2 * MiB), 0.5 - 1, 1e-3);  // half a nanosecond more to write, one less to read
  EXPECT_NEAR(staged(64 * MiB), 0.5 - 1, 1e-3);
  EXPECT_DOUBLE_EQ(per_byte(Collective::all_reduce, Algorithm::zerocopy, 4 * MiB), 0);
  // A rank copies its own block, a nanosecond a byte in the nearer caches, three where the data are large.
  other = c, other.pair[0].large_local = static_cast<std::uint32_t>(3 * kLargeBytes);
  for (const Algorithm a : {Algorithm::direct, Algorithm::pull}) {
    EXPECT_NEAR(per_byte(Collective::all_to_all, a, 256 * KiB), 0, 1e-9);
    EXPECT_NEAR(per_byte(Collective::all_to_all, a, 512 * KiB), 1, 1e-3);
    EXPECT_NEAR(per_byte(Collective::all_to_all, a, MiB), 2, 1e-3);
    EXPECT_NEAR(per_byte(Collective::all_to_all, a, 64 * MiB), 2, 1e-3);
  }
  // The buffers of other ranks have left their caches, as the places of a ring have.
  other = c, other.pair[0].ring = {kLargePiece / 4, kLargePiece};
  EXPECT_NEAR(per_byte(Collective::all_gather, Algorithm::zerocopy, 4 * MiB), -0.75, 1e-3) << "writes";
  EXPECT_NEAR(per_byte(Collective::reduce_scatter, Algorithm::zerocopy, 4 * MiB), -1, 1e-3) << "reads";
}

TEST(Cost, RingPostsAreChargedByRingFigures) {
  Calibration c = simple();
  c.pair[0].large = {static_cast<std::uint32_t>(kLargeBytes), static_cast<std::uint32_t>(2 * kLargeBytes)};
  Calibration ring = c;
  ring.pair[0].ring = {kLargePiece / 2, kLargePiece / 2};
  const auto saved = [&](Collective op, Algorithm a, int ranks, std::size_t bytes) {
    return (ns(c, op, a, ranks, bytes) - ns(ring, op, a, ranks, bytes)) / static_cast<double>(bytes);
  };
  // Half a nanosecond less to write a byte, one and a half to read it.
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 2, 64 * KiB), 2, 1e-3);
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 2, 4 * KiB), 0, 1e-3)
      << "a slot in the caches";
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 4, 64 * KiB), 0.5 + 3 * 1.5, 1e-3);
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 8, 64 * KiB), 0, 1e-3) << "there is none";
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 2, 2 * MiB), 0, 1e-3) << "buffers are large";
  EXPECT_NEAR(saved(Collective::broadcast, Algorithm::direct, 2, 64 * MiB), 1.5, 1e-2)
      << "in rooted operations always";
  ring.pair[0].ring = {2 * kLargePiece, 2 * kLargePiece};  // it takes longer, so nothing goes round
  EXPECT_NEAR(saved(Collective::all_reduce, Algorithm::oneshot, 2, 64 * KiB), 0, 1e-3);
}

/// What peers have read in place leaves their caches if buffers are large.
TEST(Cost, LaterStoresToLargeBuffersAreChargedHalfOrNothing) {
  const Calibration c = simple();
  Calibration dear = c;
  set_accesses(dear.pair[0].stores, 5);  // four nanoseconds a byte are lost
  const auto extra = [&](Collective op, Algorithm a, std::size_t bytes) {
    const CostQuery q{.collective = op, .algorithm = a, .bytes = bytes, .afterwards = true};
    return (*predicted_ns(dear, q) - *predicted_ns(c, q)) / static_cast<double>(bytes);
  };
  EXPECT_DOUBLE_EQ(extra(Collective::all_to_all, Algorithm::pull, 256 * KiB), 4);
  EXPECT_DOUBLE_EQ(extra(Collective::all_to_all, Algorithm::pull, 512 * KiB), 2);
  EXPECT_DOUBLE_EQ(extra(Collective::all_to_all, Algorithm::pull, MiB), 0);
  EXPECT_DOUBLE_EQ(extra(Collective::broadcast, Algorithm::pull, 512 * KiB), 4);
  EXPECT_DOUBLE_EQ(extra(Collective::broadcast, Algorithm::pull, 4 * MiB), 2) << "readers touch half as much";
}

TEST(Cost, IsUnknownWithoutFiguresOrWithoutAFlow) {
  EXPECT_LT(ns({}, Collective::all_reduce, Algorithm::oneshot, 2, 4096), 0);
  EXPECT_LT(ns(simple(), Collective::all_reduce, Algorithm::ring, 2, 4096), 0);       // over links
  EXPECT_LT(ns(simple(), Collective::all_reduce, Algorithm::hierarchy, 2, 4096), 0);  // between hosts
  EXPECT_LT(ns(simple(), Collective::broadcast, Algorithm::oneshot, 2, 4096), 0);     // no such flow
  Calibration forbidden = simple();
  for (std::uint32_t& p : forbidden.pair[0].pull_huge) p = 0;
  EXPECT_LT(ns(forbidden, Collective::broadcast, Algorithm::pull, 2, MiB), 0);
  EXPECT_GT(ns(forbidden, Collective::broadcast, Algorithm::direct, 2, MiB), 0);
}

std::optional<Rule> row_for(const std::vector<Rule>& rows, Collective c, Buffers b, std::size_t bytes,
                            bool pulls = true) {
  for (const Rule& r : rows)
    if (r.collective == c && r.buffers == b && bytes <= r.max_bytes &&
        (pulls || r.algorithm != Algorithm::pull))
      return r;
  return std::nullopt;
}

TEST(CostRows, PullIsChosenWhereItSavesEnough) {
  const auto rows = rows_by_cost(far_zen3(), 2, 128 * KiB);
  const auto small = row_for(rows, Collective::broadcast, Buffers::private_, 8 * KiB),
             large = row_for(rows, Collective::broadcast, Buffers::private_, MiB),
             beside = row_for(rows, Collective::broadcast, Buffers::private_, MiB, false);
  ASSERT_TRUE(small && large && beside);
  EXPECT_EQ(small->algorithm, Algorithm::direct);
  EXPECT_EQ(large->algorithm, Algorithm::pull);
  EXPECT_EQ(beside->algorithm, Algorithm::direct);  // if the buffers cannot be pulled
  EXPECT_EQ(large->hosts, Hosts::one);
  EXPECT_EQ(large->cores, Cores::enough);
  Calibration slow = far_zen3();
  for (std::uint32_t& p : slow.pair[0].pull_huge) p *= 4;
  EXPECT_FALSE(row_for(rows_by_cost(slow, 2, 128 * KiB), Collective::broadcast, Buffers::private_, MiB));
}

/// Far cores on which stores to what a peer has read take eight times as long: registered buffers go through
/// staging but for calls in place, where the peers write what they have read.
TEST(CostRows, ZeroCopyIsChosenInPlaceOnlyIfStoresAreSlow) {
  const auto rows = rows_by_cost(dear_stores(), 2, 128 * KiB);
  const auto row = row_for(rows, Collective::all_reduce, Buffers::registered, 256 * KiB);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->algorithm, Algorithm::zerocopy);
  EXPECT_TRUE(row->in_place);
  const auto scatter = row_for(rows, Collective::reduce_scatter, Buffers::registered, 256 * KiB);
  ASSERT_TRUE(scatter);
  EXPECT_EQ(scatter->algorithm, Algorithm::direct);
}

/// Ranks that share cores: what large calls copy decides, and nothing else changes.
TEST(CostRows, RanksThatShareCoresPullOnlyLargeBuffers) {
  const auto rows = rows_by_cost(far_zen3(), 4, 256 * KiB, Cores::fewer);
  const auto small = row_for(rows, Collective::all_to_all, Buffers::private_, 64 * KiB),
             large = row_for(rows, Collective::all_to_all, Buffers::private_, 4 * MiB);
  ASSERT_TRUE(small && large);
  EXPECT_EQ(small->algorithm, Algorithm::direct);
  EXPECT_EQ(large->algorithm, Algorithm::pull);
  for (const Rule& r : rows) {
    EXPECT_EQ(r.cores, Cores::fewer);
    EXPECT_EQ(r.buffers, Buffers::private_);
    EXPECT_TRUE(r.algorithm != Algorithm::pull || is_large(r.collective, 4, r.max_bytes));
  }
}

/// Private buffers on small pages are pulled only where a pull on those saves as much.
TEST(CostRows, PullOnSmallPagesIsJudgedByItsOwnFigures) {
  Calibration c = far_zen3();
  const auto row = [&] {
    return row_for(rows_by_cost(c, 2, 128 * KiB), Collective::all_gather, Buffers::private_, 4 * MiB);
  };
  ASSERT_TRUE(row());
  EXPECT_EQ(row()->algorithm, Algorithm::pull);
  EXPECT_TRUE(row()->any_pages) << "a pull takes as long on small pages";
  for (std::uint32_t& p : c.pair[0].pull) p *= 4;
  ASSERT_TRUE(row());
  EXPECT_EQ(row()->algorithm, Algorithm::pull);
  EXPECT_FALSE(row()->any_pages);
}

/// Of large private buffers the copies alone count, so a twentieth that pull saves is enough.
TEST(CostRows, LargePullsNeedToSaveATwentieth) {
  const auto pulled_after = [](double fraction, std::size_t bytes, Cores cores = Cores::enough) {
    Calibration c = far_zen3();
    const auto cost = [&](Algorithm a) {
      return *predicted_ns(
          c, {.collective = Collective::all_gather, .algorithm = a, .bytes = bytes, .afterwards = true});
    };
    const double staged = cost(Algorithm::direct), before = cost(Algorithm::pull);
    for (std::uint32_t& p : c.pair[0].pull_huge) p *= 2;
    const double slope = cost(Algorithm::pull) - before;  // for each time that a pull takes
    for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s)
      c.pair[0].pull_huge[s] = static_cast<std::uint32_t>(far_zen3().pair[0].pull_huge[s] *
                                                          (1 + (fraction * staged - before) / slope));
    EXPECT_NEAR(cost(Algorithm::pull) / staged, fraction, 1e-3);
    const auto row =
        row_for(rows_by_cost(c, 2, 128 * KiB, cores), Collective::all_gather, Buffers::private_, bytes);
    return row && row->algorithm == Algorithm::pull;
  };
  EXPECT_TRUE(pulled_after(0.93, 4 * MiB));
  EXPECT_FALSE(pulled_after(0.97, 4 * MiB));
  EXPECT_FALSE(pulled_after(0.9, 256 * KiB)) << "of smaller buffers three twentieths";
  EXPECT_TRUE(pulled_after(0.83, 256 * KiB));
  EXPECT_FALSE(pulled_after(0.9, 4 * MiB, Cores::fewer)) << "and where ranks share cores";
  EXPECT_TRUE(pulled_after(0.83, 4 * MiB, Cores::fewer));
}

TEST(CostRows, CallsThatFitIntoArrivalRecordsStayInlined) {
  const auto rows = rows_by_cost(far_zen3(), 2, 128 * KiB);
  const auto tiny = row_for(rows, Collective::broadcast, Buffers::private_, 8);
  ASSERT_TRUE(tiny);
  EXPECT_EQ(tiny->algorithm, Algorithm::inlined);
}

TEST(CostRows, NoRowsWithoutFiguresOrPeers) {
  EXPECT_TRUE(rows_by_cost({}, 2, 128 * KiB).empty());
  EXPECT_TRUE(rows_by_cost(far_zen3(), 1, 128 * KiB).empty());
}

TEST(CostRows, RowsAreComputedOnceForEachRankCountAndCores) {
  rt::CostRows rows;
  const auto& two = rows.of(far_zen3(), 2, 128 << 10, Cores::enough);
  EXPECT_EQ(two.size(), rows_by_cost(far_zen3(), 2, 128 << 10).size());
  EXPECT_NE(&two, &rows.of(far_zen3(), 4, 256 << 10, Cores::enough));
  EXPECT_NE(&two, &rows.of(far_zen3(), 2, 128 << 10, Cores::fewer));
  EXPECT_EQ(&two, &rows.of(far_zen3(), 2, 128 << 10, Cores::enough));
}

}  // namespace
}  // namespace ouro::rt
