// Sequences of different operations: small and large ones, roots that run ahead and readers that lag share
// the same staging buffers, whose serial numbers wrap around after billions of rounds.
#include <gtest/gtest.h>

#include <barrier>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

/// Element `i` of the input of `rank` in operation `turn`: small, so that sums are exact.
float value(int turn, int rank, std::size_t i) {
  return static_cast<float>((turn * 7 + rank * 31 + static_cast<int>(i % 97)) % 101);
}

/// Runs one operation with blocks of `count` elements. Returns what is wrong with its result, or "".
std::string run_one(Group& g, int collective, int turn, int root, std::size_t count, std::vector<float>& in,
                    std::vector<float>& out) {
  const int n = g.size(), me = g.rank();
  const auto all = static_cast<std::size_t>(n) * count;
  for (std::size_t i = 0; i < all; ++i) in[i] = value(turn, me, i);
  std::fill(out.begin(), out.end(), -1.0f);
  const std::span<float> one_in(in.data(), count), many_in(in.data(), all);
  const std::span<float> one_out(out.data(), count), many_out(out.data(), all);
  const auto at = [&](int block) { return static_cast<std::size_t>(block) * count; };
  const auto sum = [&](std::size_t i) {
    float s = 0;
    for (int r = 0; r < n; ++r) s += value(turn, r, i);
    return s;
  };
  const auto expect = [&](const char* what, std::size_t size, auto&& wanted) -> std::string {
    for (std::size_t i = 0; i < size; ++i)
      OURO_RANK_CHECK(out[i] == wanted(i), "turn {} {} root {} count {} element {}: {} in place of {}", turn,
                      what, root, count, i, out[i], wanted(i));
    OURO_RANK_CHECK(out[size] == -1.0f, "turn {} {}: written behind the output", turn, what);
    return "";
  };
  switch (collective) {
    case 0:
      OURO_RANK_OK(all_reduce(g, one_in, one_out));
      return expect("all_reduce", count, sum);
    case 1:
      OURO_RANK_OK(reduce_scatter(g, many_in, one_out));
      return expect("reduce_scatter", count, [&](std::size_t i) { return sum(at(me) + i); });
    case 2:
      OURO_RANK_OK(all_gather(g, one_in, many_out));
      return expect("all_gather", all,
                    [&](std::size_t i) { return value(turn, static_cast<int>(i / count), i % count); });
    case 3:
      OURO_RANK_OK(all_to_all(g, many_in, many_out));
      return expect("all_to_all", all, [&](std::size_t i) {
        return value(turn, static_cast<int>(i / count), at(me) + i % count);
      });
    case 4:
      OURO_RANK_OK(reduce(g, one_in, one_out, ReduceOp::sum, root));
      return me == root ? expect("reduce", count, sum) : "";
    case 5:
      OURO_RANK_OK(gather(g, one_in, many_out, root));
      if (me != root) return "";
      return expect("gather", all,
                    [&](std::size_t i) { return value(turn, static_cast<int>(i / count), i % count); });
    case 6:
      OURO_RANK_OK(scatter(g, many_in, one_out, root));
      return expect("scatter", count, [&](std::size_t i) { return value(turn, root, at(me) + i); });
    default:
      OURO_RANK_OK(broadcast(g, one_in, one_out, root));
      return expect("broadcast", count, [&](std::size_t i) { return value(turn, root, i); });
  }
}

class Sequences : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, Sequences, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

/// Alternates arrival records, eager slots and staging slots, with every root; each rank lags at times.
TEST_P(Sequences, UnlikeOperationsInSequenceAreExact) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const int n : {2, 3, 4}) {
    const std::string outcome = run(GetParam(), n, [](Context& c) -> std::string {
      constexpr std::size_t kCounts[] = {1, 3, 14, 60, 250, 1000, 9000};
      Group& g = c.world();
      const auto most = static_cast<std::size_t>(g.size()) * 9000 + 1;
      std::vector<float> in(most), out(most);
      std::mt19937 same(5);  // for the operations, equal on all ranks
      std::mt19937 own(static_cast<unsigned>(100 + g.rank()));
      for (int turn = 0; turn < 1500; ++turn) {
        // Half of the operations are broadcasts, so that there are long runs of them.
        const int collective = static_cast<int>(same() % 16), root = static_cast<int>(same() % 64) % g.size();
        const std::size_t count = kCounts[same() % (turn % 300 < 250 ? 5 : 7)];
        if (own() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (std::string said = run_one(g, collective, turn, root, count, in, out); !said.empty()) return said;
      }
      return "";
    });
    EXPECT_EQ(outcome, "") << n << " ranks";
  }
}

/// A root that waits for no other rank fills all arrival records, and continues when a late reader has
/// made room.
TEST_P(Sequences, BroadcastsThatRunAheadWaitForALateReader) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const std::size_t count : {std::size_t{2}, std::size_t{256}}) {
    const std::string outcome = run(GetParam(), 2, [count](Context& c) -> std::string {
      Group& g = c.world();
      std::vector<float> in(2 * count), out(2 * count + 1);
      for (int turn = 0; turn < 1000; ++turn) {
        if (g.rank() == 1 && turn % 250 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (std::string said = run_one(g, 7, turn, 0, count, in, out); !said.empty()) return said;
      }
      return "";
    });
    EXPECT_EQ(outcome, "") << count;
  }
}

/// Round 2^k: where the serial numbers of arrival records, four per round in 32 bits, reach a power of two or
/// wrap around.
class Rounds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Wrap, Rounds, testing::Values(20, 27, 28, 29, 30, 31, 32, 40));

/// Arrival records that were written at the beginning, or never, must not look as if their rank had arrived.
TEST_P(Rounds, StaleArrivalRecordsAreNotTakenForArrivals) {
  if (hosts_of(2) > 1) GTEST_SKIP() << "on several hosts: they share no staging buffers";
  constexpr int kRanks = 3;
  const std::uint64_t around = std::uint64_t{1} << GetParam();
  // In the first rounds all ranks post: after 1 most arrival records are unwritten, after 70 none.
  for (const int first : {1, 70}) {
    std::barrier<> rest(kRanks);
    const std::string outcome = run_threads(kRanks, [&](Context& c) -> std::string {
      constexpr std::size_t kCounts[] = {3, 300, 30'000};  // arrival records, eager slots, staging slots
      Group& g = c.world();
      std::vector<float> in(kRanks * kCounts[2] + 1), out(in.size());
      std::string said;
      int turn = 0;
      const auto runs = [&](int times, int collective, int root, std::size_t count) {
        for (int i = 0; i < times && said.empty(); ++i, ++turn)
          said = run_one(g, collective, turn, root, count, in, out);
        if (!said.empty()) said += fmt::format(" (at round {})", rt::TestAccess::round(*g.impl()));
      };
      runs(first, 0, 0, kCounts[0]);
      rest.arrive_and_wait();  // no rank is in a round any more
      const Status jumped = rt::TestAccess::only_read_until(*g.impl(), around - 150);
      rest.arrive_and_wait();
      OURO_RANK_OK(jumped);
      // Ranks that have not posted since are waited for, both after the numbers have wrapped around
      // and before.
      for (const int root : {0, 1, 2})
        for (const int collective : {7, 6, 4, 5}) {
          runs(14, collective, root, kCounts[0]);
          runs(7, collective, root, kCounts[1]);
          runs(1, collective, root, kCounts[2]);
          if (collective == 7 && root == 0) runs(135, collective, root, kCounts[0]);
          for (const int symmetric : {0, 1, 2, 3}) runs(1, symmetric, 0, kCounts[turn % 3]);
        }
      if (said.empty() && rt::TestAccess::round(*g.impl()) < around) said = "too few rounds";
      return said;
    });
    EXPECT_EQ(outcome, "") << first;
  }
}

}  // namespace
}  // namespace ouro::test
