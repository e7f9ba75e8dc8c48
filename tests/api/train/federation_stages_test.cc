// The two stages of a federated average at (4,2): which must come first, and which must not wait. The ranks
// beside the senders do their parts by hand, so that one stage can be held up while the other continues.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "ouro/train/federation.hpp"
#include "tests/api/train/federation_cases.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;

// kChunk: elements of a message of two stages.
constexpr std::size_t kChunk = std::size_t{1} << 18, kChunks = 8;
constexpr float kStart[] = {1, 100, 100, 3, 5, 7};  // senders 0 and 4 of shard 0, 3 and 5 of shard 1
constexpr float kMean[] = {3, 5};

/// One for each shard.
using Flags = std::array<std::atomic<bool>, 2>;

/// Waits for the flag for up to 20 seconds; returns it.
bool comes(const std::atomic<bool>& flag) {
  for (int i = 0; i < 20'000 && !flag; ++i) std::this_thread::sleep_for(Milliseconds(1));
  return flag;
}

/// Called before and after a rank handles chunk k by hand; `before` returns false if what it waited for did
/// not happen.
struct Part {
  std::function<bool(std::size_t k, std::size_t shard)> before = {};
  std::function<void(std::size_t k, std::size_t shard)> after = {};
};

/// Senders of the first site run the plan; those of the second take part in the means by hand, all other
/// ranks in the broadcasts.
std::string by_hand(Context& c, const Part& means, const Part& broadcasts) {
  auto groups = test::groups_of(c, {4, 2}, 2, 1);
  OURO_RANK_OK(groups);
  const auto shard = static_cast<std::size_t>(groups->layout.replica->local_rank);
  std::vector<float> x(kChunk * kChunks, kStart[c.rank()]);
  const Param p{.name = "x", .value = std::span(x), .grad = {}};
  auto plan = plan_aggregation(*groups, {&p, 1});
  OURO_RANK_OK(plan);
  bool in_time = true;
  if (c.rank() == 0 || c.rank() == 3) {
    OURO_RANK_OK(plan->run());
  } else {
    OURO_RANK_OK(plan->compare());
    const bool sends = groups->layout.is_sender;
    const Part& part = sends ? means : broadcasts;
    for (std::size_t k = 0; k < kChunks; ++k) {
      if (part.before) in_time &= part.before(k, shard);
      const View chunk = std::span(x).subspan(k * kChunk, kChunk);
      if (sends) {
        OURO_RANK_OK(all_reduce(groups->federated[0], chunk, chunk, ReduceOp::avg));
      } else {
        const auto root = groups->replica_average[0].from_global(*groups->layout.receive_from);
        OURO_RANK_OK(broadcast(groups->replica_average[0], chunk, chunk, *root));
      }
      if (part.after) part.after(k, shard);
    }
  }
  OURO_RANK_CHECK(in_time, "rank {} waited in vain for the other stage", c.rank());
  for (const float v : x) OURO_RANK_CHECK(v == kMean[shard], "{} for {}", v, kMean[shard]);
  return "";
}

TEST(AggregateStages, ABroadcastDoesNotWaitForTheNextMean) {
  Flags received{};
  const Part means{.before = [&](std::size_t k, std::size_t p) { return k != 1 || comes(received[p]); }};
  const Part broadcasts{.after = [&](std::size_t k, std::size_t p) {
    if (k == 0) received[p] = true;
  }};
  EXPECT_EQ("", run_threads(6, [&](Context& c) { return by_hand(c, means, broadcasts); }));
}

TEST(AggregateStages, MeansDoNotWaitForBroadcasts) {
  Flags done{};
  const Part means{.after = [&](std::size_t k, std::size_t p) {
    if (k + 1 == kChunks) done[p] = true;
  }};
  const Part broadcasts{.before = [&](std::size_t k, std::size_t p) { return k != 0 || comes(done[p]); }};
  EXPECT_EQ("", run_threads(6, [&](Context& c) { return by_hand(c, means, broadcasts); }));
}

/// A layout whose sites have no replica group, as if there were no second stage: the values must differ from
/// the mean.
TEST(AggregateStages, WithoutTheBroadcastReplicasDiverge) {
  std::array<float, 6> got{};
  EXPECT_EQ("", run_threads(6, [&](Context& c) -> std::string {
              auto groups = test::groups_of(c, {4, 2}, 2, 1);
              OURO_RANK_OK(groups);
              groups->replica_average.clear();
              float x = kStart[c.rank()];
              const Param p{.name = "x", .value = std::span(&x, 1), .grad = {}};
              // The comparison uses these groups too, so no participating rank detects a difference.
              OURO_RANK_OK(aggregate(*groups, {&p, 1}));
              got[static_cast<std::size_t>(c.rank())] = x;
              return "";
            }));
  EXPECT_EQ(got, (std::array<float, 6>{3, 100, 100, 5, 3, 5}));  // values that the other tests would refuse
}

/// For every strategy and number of streams, all ranks of a shard have the same bits, for sums that are
/// not exact.
TEST(AggregateStages, RanksOfAShardHoldTheSameBits) {
  for (const test::Mode mode : {test::Mode::threads, test::Mode::processes}) {
    OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
    EXPECT_EQ(
        "", test::run(mode, 6, [](Context& c) -> std::string {
          for (const Strategy strategy : test::kStrategies)
            for (int streams = 1; streams <= 4; ++streams) {
              auto groups = test::groups_of(c, {4, 2}, 2, streams);
              OURO_RANK_OK(groups);
              test::NamedArrays<float> model;
              for (std::size_t k = 0; k < 9; ++k) {
                std::vector<float> x(1000 * k + 1);
                for (std::size_t i = 0; i < x.size(); ++i)
                  x[i] = std::sin(static_cast<float>(i + k) + 0.1f * static_cast<float>(c.rank()));
                model.add(fmt::format("{}", k), std::move(x));
              }
              OURO_RANK_OK(aggregate(*groups, model.params(),
                                     {.strategy = strategy, .streams = streams, .site_weights = {3, 7}}));
              for (std::size_t k = 0; k < model.size(); ++k) {
                const std::vector<float>& mine = model.at(k);
                std::vector<float> all(mine.size() * 6);
                OURO_RANK_OK(all_gather(c.world(), std::span<const float>(mine), std::span(all)));
                for (std::size_t r = static_cast<std::size_t>(c.rank() % 2); r < 6; r += 2)
                  OURO_RANK_CHECK(
                      std::memcmp(&all[r * mine.size()], mine.data(), mine.size() * sizeof(float)) == 0,
                      "{} {}: rank {} has other bits", name(strategy), streams, r);
              }
            }
          return "";
        }));
  }
}

}  // namespace
}  // namespace ouro::train
