// Turns: the position of operations on device memory among all operations of their group, whatever streams
// they are given, and the progress of a group that has operations in streams.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/exec/gpu/staged_cut.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

class GpuTurns : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GpuTurns, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuTurns, OperationsOnHostStreamsKeepTheOrderOfTheCalls) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  InitOptions o;
  o.deadline = std::chrono::seconds(5);
  const auto body = [](Context& c) -> std::string {
    auto host = Stream::create();
    OURO_RANK_OK(host);
    Floats a;
    OURO_RANK_OK(a.make(c, 777));
    OURO_RANK_OK(a.fill(1));
    std::vector<float> x(500, 1), y(500, 2);
    // The stream reaches the operations later, on rank 1 even later.
    const auto pause = std::chrono::milliseconds(20 + 50 * c.rank());
    (void)host->run([pause] {
      std::this_thread::sleep_for(pause);
      return Status();
    });
    auto first = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
    OURO_RANK_OK(first);
    auto second = all_reduce(c.world(), std::span(x), std::span(x), ReduceOp::sum, *host);
    OURO_RANK_OK(second);
    OURO_RANK_OK(all_reduce(c.world(), std::span(y), std::span(y)));  // in the caller, after both
    OURO_RANK_OK(first->wait());
    OURO_RANK_OK(second->wait());
    OURO_EXPECT_ALL(a, 2);
    OURO_RANK_CHECK(x[499] == 2 && y[499] == 4, "{} {}", x[499], y[499]);
    auto last = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
    OURO_RANK_OK(last);
    OURO_RANK_OK(c.world().close());  // waits for it
    OURO_RANK_OK(last->wait());
    OURO_EXPECT_ALL(a, 4);
    return "";
  };
  EXPECT_EQ(run_threads(2, body, o), "");
}

/// An operation that a stream of the host has not reached yet still comes before a later call on the device.
TEST_P(GpuTurns, LaterDeviceCallWaitsForAnEarlierOneOnAHostStream) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  InitOptions o;
  o.deadline = std::chrono::seconds(5);
  for (const std::size_t count : {std::size_t{777}, rt::StagedCut::kPiece}) {
    // These are split into pieces there.
    if (count > 777 && std::string_view(GetParam()) != "staged") continue;
    const auto body = [count](Context& c) -> std::string {
      auto host = Stream::create(), device = Stream::create(c.device());
      OURO_RANK_OK(host);
      OURO_RANK_OK(device);
      Floats a, b;
      for (auto [floats, value] : {std::pair(&a, 1.0f), {&b, 10.0f}}) {
        OURO_RANK_OK(floats->make(c, count));
        OURO_RANK_OK(floats->fill(value));
      }
      for (int k = 1; k < 3; ++k) {
        (void)host->run([] {
          std::this_thread::sleep_for(50ms);
          return Status();
        });
        auto first = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
        OURO_RANK_OK(first);
        if (k == 1) {
          auto second = all_reduce(c.world(), b.view(), b.view(), ReduceOp::sum, *device);
          OURO_RANK_OK(second);
          OURO_RANK_OK(second->wait());
        } else {
          OURO_RANK_OK(all_reduce(c.world(), b.view(), b.view()));
        }
        OURO_RANK_OK(first->wait());
        OURO_EXPECT_ALL(a, static_cast<float>(1 << k));
        OURO_EXPECT_ALL(b, static_cast<float>(10 << k));
      }
      return only_ran(c.world(), GetParam());
    };
    ASSERT_EQ(run_threads(2, body, o), "");
  }
}

/// Ranks that share few hardware queues: staged operations run inside their calls, in the same order.
TEST(GpuTurnsInCalls, OperationsInsideTheirCallsKeepTheOrder) {
  OURO_NEEDS_FAKES();
  gpu::install(new gpu::FakeGpu({.harsh = {.connections = 4}}));  // pools of the process keep its events
  InitOptions o;
  o.deadline = std::chrono::seconds(5);
  const auto body = [](Context& c) -> std::string {
    auto host = Stream::create(), device = Stream::create(c.device());
    OURO_RANK_OK(host);
    OURO_RANK_OK(device);
    Floats a, b;
    OURO_RANK_OK(a.make(c, 777));
    OURO_RANK_OK(b.make(c, 777));
    OURO_RANK_OK(a.fill(1));
    OURO_RANK_OK(b.fill(10));
    (void)host->run([] {
      std::this_thread::sleep_for(50ms);
      return Status();
    });
    auto first = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
    OURO_RANK_OK(first);
    auto second = all_reduce(c.world(), b.view(), b.view(), ReduceOp::sum, *device);
    OURO_RANK_OK(second);
    OURO_RANK_OK(second->wait());
    OURO_RANK_OK(first->wait());
    OURO_EXPECT_ALL(a, 2);
    OURO_EXPECT_ALL(b, 20);
    return only_ran(c.world(), "staged");
  };
  EXPECT_EQ(run_threads(2, body, o), "");
  gpu::install(nullptr);
}

/// Threads of a user may call at the same time; equal calls have equal results in any order.
TEST_P(GpuTurns, ThreadsOfOneRankMayCallConcurrently) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  InitOptions o;
  o.deadline = std::chrono::seconds(20);
  const auto body = [](Context& c) -> std::string {
    auto shared = Stream::create(c.device());
    OURO_RANK_OK(shared);
    constexpr int kTimes = 15;
    const auto caller = [&](bool own) -> std::string {
      auto made = Stream::create(c.device());
      OURO_RANK_OK(made);
      const Stream& on = own ? *made : *shared;
      Floats v;
      OURO_RANK_OK(v.make(c, 777));
      OURO_RANK_OK(v.fill(1));
      Work last;
      for (int k = 0; k < kTimes; ++k) {
        auto w = all_reduce(c.world(), v.view(), v.view(), ReduceOp::max, on);
        OURO_RANK_OK(w);
        last = *w;
      }
      OURO_RANK_OK(last.wait());
      OURO_EXPECT_ALL(v, 1);
      return "";
    };
    std::string said[3];
    std::thread others[] = {std::thread([&] { said[0] = caller(false); }),
                            std::thread([&] { said[1] = caller(false); }),
                            std::thread([&] { said[2] = caller(true); })};
    for (std::thread& t : others) t.join();
    return said[0] + said[1] + said[2];
  };
  EXPECT_EQ(run_threads(2, body, o), "");
}

/// The stream of the host never reaches its operation: whatever waits for it must be told of the group's end.
TEST_P(GpuTurns, WaitForAHostStreamEndsWhenTheGroupFails) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  std::atomic<bool> held{true};
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    auto host = Stream::create();
    ASSERT_TRUE(host.ok());
    Floats a, b;
    for (Floats* f : {&a, &b}) ASSERT_TRUE(f->make(c, 777).ok() && f->fill(1).ok());
    (void)host->run([&] {
      while (held.load()) std::this_thread::sleep_for(1ms);
      return Status();
    });
    auto first = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
    ASSERT_TRUE(first.ok());
    std::thread ends([&] {
      std::this_thread::sleep_for(50ms);
      if (rank == 0) c.world().abort("enough");
    });
    EXPECT_THAT(all_reduce(c.world(), b.view(), b.view()), Fails(Reason::revoked));
    ends.join();
    held.store(false);
    EXPECT_THAT(first->wait(), Fails(Reason::revoked));
    EXPECT_EQ(b.expect(1), "");
    EXPECT_TRUE(c.world().close().ok());  // waits for all turns
  });
}

TEST(GpuBatch, OneThreadDrivesTwoRanksByABatch) {
  OURO_NEEDS_GPU();
  InitOptions o;
  o.deadline = std::chrono::seconds(5);
  auto contexts = Context::threads(2, o);
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  std::vector<Floats> a(2);
  std::vector<std::vector<float>> x(2, std::vector<float>(500, 1));
  group_start();
  for (std::size_t r = 0; r < 2; ++r) {
    Context& c = (*contexts)[r];
    ASSERT_TRUE(a[r].make(c, 777).ok());
    ASSERT_TRUE(a[r].fill(1).ok());
    ASSERT_TRUE(all_reduce(c.world(), a[r].view(), a[r].view()).ok());
    ASSERT_TRUE(all_reduce(c.world(), std::span(x[r]), std::span(x[r])).ok());
  }
  const Status s = group_end();
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(x[1][499], 2);
}

/// Without the staged path, where an operation ends on the host, in its turn.
class GpuTurnsEnqueued : public GpuTurns {};
INSTANTIATE_TEST_SUITE_P(All, GpuTurnsEnqueued, testing::Values("leader", "resident", "stream"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuTurnsEnqueued, ResumePointIsTheFirstUnfinishedOperation) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  std::atomic<bool> held{true};
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Group& g = c.world();
    auto stream = Stream::create(c.device());
    ASSERT_TRUE(stream.ok());
    Floats a;
    ASSERT_TRUE(a.make(c, 777).ok());
    ASSERT_TRUE(exact_all_reduce(g).ok());  // 1
    if (rank == 1)
      (void)stream->run([&] {
        while (held.load()) std::this_thread::sleep_for(1ms);
        return Status();
      });
    auto w =
        all_reduce(g, a.view(), a.view(), ReduceOp::max, *stream);  // 2: rank 1's stream never reaches it
    ASSERT_TRUE(w.ok()) << w.status().message();
    ASSERT_TRUE(exact_all_reduce(g).ok());  // 3
    ASSERT_FALSE(w->test());
    ASSERT_TRUE(exact_all_reduce(g).ok());  // 4: both have noticed that
    if (rank == 0) g.abort("enough");
    EXPECT_TRUE(eventually([&] { return !g.status().ok(); }));
    held.store(false);
    ShrinkReport report;
    auto next = g.shrink(&report);
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(report.resume_seq, 2u);
  });
}

}  // namespace
}  // namespace ouro::test
