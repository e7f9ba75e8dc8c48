// Times that follow from the number of calls, at the prices of a machine: see priced_gpu.h.
#include "tests/runtime/exec/gpu/priced_gpu.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>

#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/exec/gpu/counted_calls.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Of a machine with one H200: a piece fits its measured times, a hop is a word in device memory as
/// bench_gpu_floor measured it, the others are estimates.
constexpr GpuPrices kH200{.piece = 3.4, .query = 1.5, .map = 300, .hop = 1.4};
constexpr int kCalls = 20;

/// For the stream, after the last call or after each; or a call without a stream, which waits.
enum class Wait { at_the_end, each, in_call };

struct Clocks {
  std::vector<double> before, after;
};

std::string clock_rank(Context& c, std::size_t count, Wait wait, PricedGpu& priced, std::barrier<>& all,
                       Clocks* clocks) {
  const LeavesAtTheEnd leaves{all};
  const auto rank = static_cast<std::size_t>(c.world().rank());
  Floats data;
  OURO_RANK_OK(data.make(c, count));
  OURO_RANK_OK(data.fill(1));
  auto stream = Stream::create(c.device());
  OURO_RANK_OK(stream);
  const auto sum = [&]() -> Status {
    if (wait != Wait::in_call)
      return status_of(all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum, *stream));
    const Status ended = all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum);
    priced.saw_all_end(c.device().index);
    return ended;
  };
  // The handle is not taken from the stream: whoever has that may enqueue work, and is asked for.
  const auto handle = reinterpret_cast<void*>(stream->impl()->gpu()->identity());
  const auto synchronize = [&] {
    Status ended = stream->synchronize();
    priced.saw_end({c.device().index, handle});
    return ended;
  };
  for (int i = 0; i < 3; ++i) {
    OURO_RANK_OK(sum());
    OURO_RANK_OK(synchronize());
  }
  all.arrive_and_wait();
  clocks->before[rank] = priced.now();
  all.arrive_and_wait();
  for (int i = 0; i < kCalls; ++i) {
    OURO_RANK_OK(sum());
    if (wait == Wait::each) OURO_RANK_OK(synchronize());
    all.arrive_and_wait();  // in real time: threads take turns, and none enqueues all of its calls first
  }
  OURO_RANK_OK(synchronize());
  clocks->after[rank] = priced.now();
  return "";
}

/// Virtual microseconds of one sum by n threads on one GPU.
double us_of_a_sum(const char* path, int n, Wait wait, const GpuPrices& prices = kH200,
                   std::size_t count = 2) {
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
      EXPECT_EQ(clock_rank(contexts[static_cast<std::size_t>(r)], count, wait, priced, all, &clocks), "");
    });
  }
  gpu::install(nullptr);
  return (std::ranges::max(clocks.after) - std::ranges::max(clocks.before)) / kCalls;
}

/// What an H200 took for a small sum by threads, with a wait for each and in a row, when the leader's path
/// took 5N + 3 and 4N + 3 pieces: bench/results/gpu-status.md. These prices gave 46, 79, 148 and 38, 65, 119
/// us then.
struct Measured {
  int ranks;
  double each, in_a_row;
};
constexpr Measured kBefore[] = {{2, 41, 38}, {4, 77, 69}, {8, 169, 120}};

/// Forecasts. The paths take N + 1 and N pieces now; what else a call takes are hops of the streams and the
/// look at the word by which the host learns of its end.
TEST(PricedGpu, SmallSumsTakeAPieceOfEachRankAndFewHops) {
  OURO_NEEDS_FAKES();
  for (const auto [n, each, in_a_row] : kBefore) {
    const double rest = 4 * kH200.hop + kH200.query;
    const double leader = us_of_a_sum("leader", n, Wait::each),
                 row = us_of_a_sum("leader", n, Wait::at_the_end),
                 resident = us_of_a_sum("resident", n, Wait::each);
    const auto say = [n = n](const char* path, double us) {
      RecordProperty(fmt::format("{}_{}", path, n), fmt::format("{:.1f}", us));
      fmt::print("{} ranks, {}: {:.1f} us\n", n, path, us);
    };
    const double in_call = us_of_a_sum("leader", n, Wait::in_call);
    say("leader", leader), say("leader_in_a_row", row), say("resident", resident), say("in_call", in_call);
    EXPECT_LE(in_call, kH200.piece + 8) << "one launch for all " << n << " threads";
    EXPECT_LE(leader, (n + 1) * kH200.piece + rest) << n << " threads";
    EXPECT_LE(row, (n + 1) * kH200.piece + rest) << n << " threads";
    EXPECT_LE(resident, n * kH200.piece + rest) << n << " threads";
    EXPECT_LT(2 * leader, each) << n << " threads";
    EXPECT_LT(2 * row, in_a_row) << n << " threads";
    EXPECT_LT(resident, leader) << n << " threads";
    EXPECT_GE(resident, n * kH200.piece) << "a price was forgotten";
  }
}

/// 16 MiB in a row, of which a copy kernel's rate is the limit: the kernel decides, not the host. The
/// emulated device sums 16 KiB, whose bytes take 1024 times as long.
TEST(PricedGpu, SixteenMiBRunNearTheCopysRate) {
  OURO_NEEDS_FAKES();
  constexpr double kCopy = 3796e3, kTimes = 1024;  // bytes a us
  GpuPrices prices = kH200;
  prices.byte = kTimes / kCopy;
  constexpr std::size_t kCount = 4096;
  struct Aim {
    int ranks;
    double share;
  };
  for (const auto [n, share] : {Aim{2, 0.75}, Aim{4, 0.82}, Aim{8, 0.87}}) {
    const double floor = 2 * n * 4.0 * kCount * prices.byte;
    const double us = us_of_a_sum("leader", n, Wait::at_the_end, prices, kCount);
    fmt::print("{} ranks, 16 MiB: {:.1f} us, {:.0f} % of the copy\n", n, us, 100 * floor / us);
    EXPECT_GE(floor / us, share) << n << " threads";
    EXPECT_LT(floor / us, 1) << "bytes have no price";
  }
}

/// Time is in the pieces: with a lock that costs nothing, only the hops of one operation are left.
TEST(PricedGpu, WithoutTheLockTimeIsInTheHops) {
  OURO_NEEDS_FAKES();
  GpuPrices free = kH200;
  free.piece = 0;
  EXPECT_LE(us_of_a_sum("leader", 4, Wait::each, free), 4 * kH200.hop + kH200.query);
  EXPECT_GT(us_of_a_sum("leader", 4, Wait::each, free), kH200.hop + kH200.query);
}

}  // namespace
}  // namespace ouro::test
