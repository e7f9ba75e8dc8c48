// Times that follow from the number of calls, at the prices of a machine: see priced_gpu.h.
#include "tests/runtime/exec/gpu/priced_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>

#include "tests/runtime/exec/gpu/counted_calls.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Of a machine with one H200: a piece fits its measured times, a hop is a word in device memory as
/// bench_gpu_floor measured it, the others are estimates.
constexpr GpuPrices kH200{.piece = 3.4, .query = 1.5, .map = 300, .hop = 1.4};
constexpr int kCalls = 20;

enum class Wait : bool { at_the_end, each };

struct Clocks {
  std::vector<double> before, after;
};

std::string clock_rank(Context& c, Wait wait, PricedGpu& priced, std::barrier<>& all, Clocks* clocks) {
  const LeavesAtTheEnd leaves{all};
  const auto rank = static_cast<std::size_t>(c.world().rank());
  Floats data;
  OURO_RANK_OK(data.make(c, 2));
  OURO_RANK_OK(data.fill(1));
  auto stream = Stream::create(c.device());
  OURO_RANK_OK(stream);
  const auto sum = [&] {
    return status_of(all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum, *stream));
  };
  for (int i = 0; i < 3; ++i) {
    OURO_RANK_OK(sum());
    OURO_RANK_OK(stream->synchronize());
  }
  all.arrive_and_wait();
  clocks->before[rank] = priced.now();
  all.arrive_and_wait();
  for (int i = 0; i < kCalls; ++i) {
    OURO_RANK_OK(sum());
    if (wait == Wait::each) OURO_RANK_OK(stream->synchronize());
  }
  OURO_RANK_OK(stream->synchronize());
  clocks->after[rank] = priced.now();
  return "";
}

/// Virtual microseconds of one sum of 8 bytes by n threads on one GPU.
double us_of_a_sum(const char* path, int n, Wait wait, const GpuPrices& prices = kH200) {
  const ForcedPath forced(path);
  PricedGpu priced(CountedGpus::devices(), prices);
  gpu::install(&priced);
  Watchdog watchdog;
  InitOptions options;
  options.gpu = 0;
  Clocks clocks{std::vector<double>(static_cast<std::size_t>(n)),
                std::vector<double>(static_cast<std::size_t>(n))};
  {
    auto contexts = thread_contexts(n, options);
    std::barrier all(n);
    on_threads(n, [&](int r) {
      EXPECT_EQ(clock_rank(contexts[static_cast<std::size_t>(r)], wait, priced, all, &clocks), "");
    });
  }
  gpu::install(nullptr);
  return (std::ranges::max(clocks.after) - std::ranges::max(clocks.before)) / kCalls;
}

struct Measured {
  int ranks;
  double us;
};

/// The driver's lock explains the measured times of small sums on the leader's path:
/// bench/results/gpu-status.md. When the path takes fewer pieces, these times are no longer its own, and need
/// a new measurement.
TEST(PricedGpu, SmallSumsByTheLeaderTakeWhatAnH200Took) {
  OURO_NEEDS_FAKES();
  for (const auto [ranks, us] : {Measured{2, 41}, Measured{4, 77}, Measured{8, 169}})
    EXPECT_NEAR(us_of_a_sum("leader", ranks, Wait::each), us, us / 4) << ranks << " threads";
}

TEST(PricedGpu, SumsInARowTakeWhatAnH200Took) {
  OURO_NEEDS_FAKES();
  for (const auto [ranks, us] : {Measured{2, 38}, Measured{4, 69}, Measured{8, 120}})
    EXPECT_NEAR(us_of_a_sum("leader", ranks, Wait::at_the_end), us, us / 4) << ranks << " threads";
}

/// Time is in the pieces: with a lock that costs nothing, only the hops of one operation are left.
TEST(PricedGpu, WithoutTheLockTimeIsInTheHops) {
  OURO_NEEDS_FAKES();
  GpuPrices free = kH200;
  free.piece = 0;
  EXPECT_LT(us_of_a_sum("leader", 4, Wait::each, free), 4 * (kH200.hop + kH200.query) + 8 * kH200.hop);
  EXPECT_GT(us_of_a_sum("leader", 4, Wait::each, free), kH200.hop + kH200.query);
}

/// A forecast, not a measurement: resident kernels of threads on one GPU, at three pieces a rank.
TEST(PricedGpu, ResidentKernelsTakeLess) {
  OURO_NEEDS_FAKES();
  for (const int ranks : {2, 4, 8}) {
    const double leader = us_of_a_sum("leader", ranks, Wait::each);
    const double resident = us_of_a_sum("resident", ranks, Wait::each);
    RecordProperty("resident_" + std::to_string(ranks), std::to_string(resident));
    EXPECT_GT(resident, 3 * ranks * kH200.piece) << ranks << " threads";
    EXPECT_LT(resident, leader) << ranks << " threads";
  }
}

}  // namespace
}  // namespace ouro::test
