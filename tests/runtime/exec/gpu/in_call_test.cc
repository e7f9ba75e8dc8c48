// Calls on device memory that wait for their operation, by ranks that share a GPU: one launch serves all of
// them, unless a rank's call does not wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/device/counting_gpu.h"
#include "kernels/device/fake/fake_gpu.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

struct Way {
  const char* path;
  Mode mode;
};
class GpuInCall : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(All, GpuInCall,
                         testing::Values(Way{"auto", Mode::threads}, Way{"leader", Mode::threads},
                                         Way{"resident", Mode::threads}, Way{"auto", Mode::processes},
                                         Way{"leader", Mode::processes}),
                         [](const auto& info) {
                           return std::string(info.param.path) + "_" + name(info.param.mode);
                         });

InitOptions on_one_gpu() {
  InitOptions o = quick_options();
  o.gpu = 0;
  return o;
}

/// Pseudo-random, and the same on all ranks.
std::uint64_t draw(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
  x ^= x >> 29, x *= 0x94d049bb133111ebu;
  return x >> 32;
}

/// Sums, small and large, and copies; each rank waits in some calls and not in others.
TEST_P(GpuInCall, CallsThatWaitAndCallsThatDoNotMeet) {
  OURO_NEEDS_GPU();
  const auto [path, mode] = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  const ForcedPath forced(path);
  const auto body = [](Context& c) -> std::string {
    constexpr std::size_t kLarge = 40'000;
    const auto n = static_cast<std::size_t>(c.world().size());
    const auto me = static_cast<std::uint64_t>(c.world().rank());
    auto stream = Stream::create(c.device());
    OURO_RANK_OK(stream);
    Floats in, sum, all;
    OURO_RANK_OK(in.make(c, kLarge));
    OURO_RANK_OK(sum.make(c, kLarge));
    OURO_RANK_OK(all.make(c, n * kLarge));
    for (std::uint64_t k = 0; k < 60; ++k) {
      const bool waits = draw(k, 100) % 3 == 0 || (draw(k, 100) % 3 == 1 && draw(k, me) % 2 == 0);
      const std::size_t count = draw(k, 101) % 2 ? 1 + draw(k, 102) % 1000 : kLarge;
      OURO_RANK_OK(in.fill(static_cast<float>(k + me)));
      const View from(in.arena.data(), count, DType::f32, in.device);
      const View to(sum.arena.data(), count, DType::f32, in.device);
      const View gathered(all.arena.data(), n * count, DType::f32, in.device);
      const bool sums = draw(k, 103) % 3 != 0;
      const auto call = [&](auto&&... on) {
        return sums ? status_of(all_reduce(c.world(), from, to, ReduceOp::sum, on...))
                    : status_of(all_gather(c.world(), from, gathered, on...));
      };
      OURO_RANK_OK(waits ? call() : call(*stream));
      if (!waits) OURO_RANK_OK(stream->synchronize());
      auto got = sums ? sum.arena.read(4 * count) : all.arena.read(4 * n * count);
      OURO_RANK_OK(got);
      for (std::size_t i = 0; i < got->size() / 4; ++i) {
        float x = 0;
        std::memcpy(&x, &(*got)[4 * i], 4);
        const auto expected =
            sums ? static_cast<float>(n * k + n * (n - 1) / 2) : static_cast<float>(k + i / count);
        OURO_RANK_CHECK(x == expected, "operation {}, element {}: {} in place of {}", k, i, x, expected);
      }
    }
    return "";
  };
  EXPECT_EQ(run(mode, 3, body, on_one_gpu()), "");
}

/// A rank that waits for nobody's stream is still late, or alone, in the same way.
TEST_P(GpuInCall, MissingRankIsNamedAtTheDeadline) {
  OURO_NEEDS_GPU();
  const auto [path, mode] = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  const ForcedPath forced(path);
  InitOptions o = on_one_gpu();
  o.deadline = Milliseconds(300);
  const auto body = [](Context& c) -> std::string {
    Floats data;
    OURO_RANK_OK(data.make(c, 100));
    OURO_RANK_OK(data.fill(1));
    OURO_RANK_OK(all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum));
    if (c.world().rank() == 1) {
      std::this_thread::sleep_for(1500ms);
      return "";
    }
    const Status s = all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum);
    OURO_RANK_CHECK(s.reason() == Reason::deadline, "{}", s.message());
    OURO_RANK_CHECK(has(s.message(), "ranks {1} have not entered"), "{}", s.message());
    return "";
  };
  EXPECT_EQ(run(mode, 3, body, o), "");
}

TEST_P(GpuInCall, AbortEndsTheCall) {
  OURO_NEEDS_GPU();
  const auto [path, mode] = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  const ForcedPath forced(path);
  const auto body = [](Context& c) -> std::string {
    Floats data;
    OURO_RANK_OK(data.make(c, 100));
    OURO_RANK_OK(data.fill(1));
    OURO_RANK_OK(all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum));
    if (c.world().rank() == 1) {
      std::this_thread::sleep_for(100ms);
      c.world().abort("enough");
      return "";
    }
    const Status s = all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum);
    OURO_RANK_CHECK(s.reason() == Reason::revoked, "{}", s.message());
    return "";
  };
  EXPECT_EQ(run(mode, 3, body, on_one_gpu()), "");
}

/// The launch for all fails, in whichever rank: all ranks get an error, and none waits on.
TEST_P(GpuInCall, FailedLaunchFailsItForAllRanks) {
  OURO_NEEDS_FAKES();
  const auto [path, mode] = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  const ForcedPath forced(path);
  const auto body = [](Context& c) -> std::string {
    Floats data;
    OURO_RANK_OK(data.make(c, 100));
    OURO_RANK_OK(data.fill(1));
    OURO_RANK_OK(all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum));
    OURO_RANK_OK(barrier(c.world()));
    static_cast<gpu::FakeGpu&>(gpu::gpu()).fail_next(gpu::FakeOp::kernel, Reason::resource);
    const Status s = all_reduce(c.world(), data.view(), data.view(), ReduceOp::sum);
    OURO_RANK_CHECK(!s.ok(), "no error");
    return "";
  };
  EXPECT_EQ(run(mode, 3, body, on_one_gpu()), "");
}

/// In calls that do not wait the last to arrive leads, which may be any rank. Each has mapped the others'
/// buffers by the third call, before it leads for the first time.
TEST(GpuEarlyMapping, RanksMapBuffersBeforeTheyLead) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  constexpr int kRanks = 4;
  const ForcedPath forced("leader");
  const UniqueId id = new_id();
  Processes ranks(kRanks, [&](int rank, Board& board) {
    static gpu::FakeGpu devices({.multiprocessors = 16});
    static gpu::CountingGpu counting(devices);
    gpu::install(&counting);
    InitOptions o = options(rank, kRanks, id);
    o.gpu = 0;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    Floats data;
    ASSERT_TRUE(data.make(*c, 1000).ok() && data.fill(0).ok());
    auto stream = Stream::create(c->device());
    ASSERT_TRUE(stream.ok());
    const auto sum_as_last = [&](int last) {
      ASSERT_TRUE(barrier(c->world()).ok());
      if (rank == last) std::this_thread::sleep_for(10ms);
      ASSERT_TRUE(all_reduce(c->world(), data.view(), data.view(), ReduceOp::sum, *stream).ok());
      ASSERT_TRUE(stream->synchronize().ok());
    };
    for (int k = 0; k < 3; ++k) sum_as_last(0);
    const auto before = counting.total();
    for (int k = 0; k < 2 * kRanks; ++k) sum_as_last(k % kRanks);
    const auto spent = counting.total() - before;
    EXPECT_EQ(spent.of(gpu::GpuCall::map), 0u);
    board.completed[rank] = spent.of(gpu::GpuCall::launch);
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
  for (int r = 0; r < kRanks; ++r) EXPECT_GE(ranks.board().completed[r], 1u) << "rank " << r << " never led";
}

/// Among processes the same rank launches for all each time: the others' contexts have nothing on the GPU.
TEST(GpuInCallOfProcesses, OneProcessLeads) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  constexpr int kRanks = 4, kTimes = 20;
  const UniqueId id = new_id();
  Processes ranks(kRanks, [&](int rank, Board& board) {
    static gpu::FakeGpu devices({.multiprocessors = 16});
    static gpu::CountingGpu counting(devices);
    gpu::install(&counting);
    InitOptions o = options(rank, kRanks, id);
    o.gpu = 0;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    Floats data;
    ASSERT_TRUE(data.make(*c, 1000).ok() && data.fill(0).ok());
    const auto sum = [&] { return all_reduce(c->world(), data.view(), data.view(), ReduceOp::sum); };
    ASSERT_TRUE(sum().ok());
    const auto before = counting.total();
    for (int k = 0; k < kTimes; ++k) ASSERT_TRUE(sum().ok());
    board.completed[rank] = (counting.total() - before).pieces();
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
  int lead = 0;
  for (int r = 0; r < kRanks; ++r) {
    const std::uint64_t launches = ranks.board().completed[r];
    EXPECT_TRUE(launches == 0 || launches == kTimes) << launches;
    lead += launches == kTimes;
  }
  EXPECT_EQ(lead, 1);
}

/// The rank that leads dies in between: the next call fails on the others, which do not wait for its launch.
TEST(GpuInCallOfProcesses, LeaderThatDiesIsNamed) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  constexpr int kRanks = 3;
  const UniqueId id = new_id();
  Processes ranks(kRanks, [&](int rank, Board& board) {
    static gpu::FakeGpu devices({.multiprocessors = 16});
    static gpu::CountingGpu counting(devices);
    gpu::install(&counting);
    InitOptions o = options(rank, kRanks, id);
    o.gpu = 0;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    Floats data;
    ASSERT_TRUE(data.make(*c, 1000).ok() && data.fill(0).ok());
    const auto sum = [&] { return all_reduce(c->world(), data.view(), data.view(), ReduceOp::sum); };
    ASSERT_TRUE(sum().ok());
    const auto before = counting.total();
    ASSERT_TRUE(sum().ok());
    if ((counting.total() - before).pieces() > 0) {
      board.stage[rank] = 1;
      std::this_thread::sleep_for(kHang);  // until it is killed
    }
    EXPECT_THAT(sum(), Fails(Reason::peer_dead));
  });
  Board& board = ranks.board();
  int leader = -1;
  ASSERT_TRUE(eventually([&] {
    for (int r = 0; r < kRanks; ++r)
      if (board.stage[r] == 1) leader = r;
    return leader >= 0;
  }));
  std::this_thread::sleep_for(100ms);  // the others are in their call
  ranks.kill({leader});
  ranks.join({leader});
}

}  // namespace
}  // namespace ouro::test
