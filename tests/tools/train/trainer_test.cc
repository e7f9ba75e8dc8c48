// Tests of data-parallel training with ranks as threads: losses independent of the number of ranks, of shards
// and of the device, repeatable bits, accuracy, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "kernels/device/gpu.h"
#include "tools/train/sharded.h"
#include "tools/train/task.h"

namespace ouro::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Trains with `ranks` threads; checks that all ranks agree and returns rank 0's report.
TrainReport train_on(int ranks, const TrainOptions& options) {
  Result<std::vector<Context>> contexts = Context::threads(ranks);
  EXPECT_TRUE(contexts.ok()) << contexts.status().message();
  if (!contexts) return {};
  std::vector<TrainReport> reports(contexts->size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < reports.size(); ++r)
    threads.emplace_back([&, r] {
      Result<TrainReport> report = train_sharded((*contexts)[r], options);
      EXPECT_TRUE(report.ok()) << report.status().message();
      if (report) reports[r] = std::move(*report);
    });
  threads.clear();  // joins
  for (const TrainReport& report : reports) {
    EXPECT_EQ(report.losses, reports[0].losses);
    EXPECT_EQ(report.correct, reports[0].correct);
  }
  return std::move(reports[0]);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // keeps a NaN
  }
  return largest;
}

TEST(NumbersOfStep, BatchIsTheSameForAnyNumberOfRanks) {
  EXPECT_THAT(numbers_of_step(0, 4, 0, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numbers_of_step(2, 4, 0, 1), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(numbers_of_step(2, 4, 0, 3), ElementsAre(8, 11));
  EXPECT_THAT(numbers_of_step(2, 4, 2, 3), ElementsAre(10));
  EXPECT_THAT(numbers_of_step(0, 2, 2, 3), ElementsAre());
}

TEST(Pool, CyclesThroughItsShareOfTheSamples) {
  const Pool all(10, 0, 0, 1), third(10, 0, 1, 3), shuffled(10, 7, 0, 1);
  EXPECT_EQ(all[3], 3u);
  EXPECT_EQ(all[13], 3u);
  const std::vector<std::uint32_t> got = {third[0], third[1], third[2], third[3]};
  EXPECT_THAT(got, ElementsAre(1, 4, 7, 1));
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 10; ++i) seen.insert(shuffled[i]);
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(shuffled[10], shuffled[0]);
}

TEST(TrainSharded, DefaultsReachTheAccuracy) {
  TrainOptions options;
  int calls = 0;
  options.on_step = [&](const Step& step) { EXPECT_EQ(step.number, ++calls); };
  const TrainReport report = train_on(1, options);
  EXPECT_EQ(calls, options.steps);
  EXPECT_EQ(report.ranks, 1);
  EXPECT_EQ(report.test_rows, 360);
  EXPECT_GT(report.test_accuracy, 0.92);
  EXPECT_GT(train_on(4, {}).test_accuracy, 0.92);
}

TEST(TrainSharded, LossesDoNotDependOnTheNumberOfRanks) {
  const TrainReport one = train_on(1, {.steps = 200});
  EXPECT_LT(one.losses.back(), 0.25 * one.losses.front());
  for (const int ranks : {2, 3, 4})
    EXPECT_LT(largest_difference(train_on(ranks, {.steps = 200}).losses, one.losses), 1e-5)
        << ranks << " ranks";
}

TEST(TrainSharded, CanonicalDoubleMatchesOneRankClosely) {
  const TrainOptions options{.steps = 200, .dtype = DType::f64, .numerics = Numerics::canonical};
  EXPECT_LT(largest_difference(train_on(4, options).losses, train_on(1, options).losses), 1e-12);
}

TEST(TrainSharded, RepeatsBitForBit) {
  for (const Numerics numerics : {Numerics::fast, Numerics::canonical}) {
    const TrainOptions options{.steps = 50, .numerics = numerics};
    EXPECT_EQ(train_on(4, options).losses, train_on(4, options).losses);
  }
}

/// On fake devices in ctest; on the card of the machine when run by hand.
TEST(TrainDevice, HasTheLossesOfTheHost) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  for (const Strategy strategy : {Strategy::ddp, Strategy::fsdp})
    for (const DType dtype : {DType::f32, DType::f64})
      for (const int ranks : {1, 3}) {
        TrainOptions options{.steps = 30, .dtype = dtype, .numerics = Numerics::canonical};
        options.strategy = strategy;
        const TrainReport host = train_on(ranks, options);
        options.device = true;
        const TrainReport device = train_on(ranks, options);
        // The batch is 64, so they are equal bit for bit.
        EXPECT_EQ(device.losses, host.losses) << ranks << " ranks";
        EXPECT_EQ(device.correct, host.correct);
      }
}

TEST(TrainDevice, OtherBatchesAndNoMomentumDifferByRounding) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  for (const double momentum : {0.0, 0.9}) {
    TrainOptions options{.steps = 30, .batch = 63, .momentum = momentum, .dtype = DType::f64};
    const TrainReport host = train_on(2, options);
    options.device = true;
    const TrainReport device = train_on(2, options);
    EXPECT_LT(largest_difference(device.losses, host.losses), 1e-12);
    EXPECT_LT(device.losses.back(), 0.75 * device.losses.front());
    EXPECT_EQ(device.losses, train_on(2, options).losses);
  }
}

TEST(TrainDevice, RankWithoutAGpuIsNamed) {
  InitOptions none;
  none.gpu = -1;
  Result<std::vector<Context>> contexts = Context::threads(1, none);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  const Status s = train_sharded(contexts->front(), {.device = true}).status();
  EXPECT_EQ(s.reason(), Reason::unsupported);
  EXPECT_THAT(s.message(), HasSubstr("rank 0 has no GPU"));
}

TEST(TrainSharded, MoreRanksThanRowsChangeNothingButTheSeedDoes) {
  const TrainReport plain = train_on(1, {.steps = 5, .batch = 3});
  EXPECT_LT(largest_difference(train_on(5, {.steps = 5, .batch = 3}).losses, plain.losses), 1e-5);
  EXPECT_GT(largest_difference(train_on(1, {.steps = 5, .batch = 3, .seed = 9}).losses, plain.losses), 1e-3);
}

TEST(TrainSharded, RefusesBadOptions) {
  Result<std::vector<Context>> contexts = Context::threads(1);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  const auto error = [&](const TrainOptions& options) {
    const Status s = train_sharded(contexts->front(), options).status();
    EXPECT_EQ(s.code(), Code::invalid);
    return s.failure() ? s.failure()->text : "";
  };
  EXPECT_THAT(error({.steps = 0}), HasSubstr("--steps"));
  EXPECT_THAT(error({.batch = 0}), HasSubstr("--batch"));
  EXPECT_THAT(error({.lr = 0}), HasSubstr("--lr"));
  EXPECT_THAT(error({.lr = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("--lr"));
  EXPECT_THAT(error({.momentum = 1}), HasSubstr("momentum"));
  EXPECT_THAT(error({.strategy = Strategy::fsdp, .shards = 2}), HasSubstr("--shards 2"));
  EXPECT_THAT(error({.dtype = DType::bf16}), HasSubstr("f32 or f64"));
}

}  // namespace
}  // namespace ouro::tools
