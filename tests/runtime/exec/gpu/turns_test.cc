// Turns: where operations on device memory stand among all operations of their group, whatever stream they
// were given, and how far a group has come that holds some in streams.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

class GpuTurns : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GpuTurns, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuTurns, OnAStreamOfTheHostTheirTurnIsThatOfTheCall) {
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
    // The stream comes to them later, and to that of rank 1 later than to the other.
    const auto pause = std::chrono::milliseconds(20 + 50 * c.rank());
    (void)host->run([pause] {
      std::this_thread::sleep_for(pause);
      return Status();
    });
    auto first = all_reduce(c.world(), a.view(), a.view(), ReduceOp::sum, *host);
    OURO_RANK_OK(first);
    auto second = all_reduce(c.world(), std::span(x), std::span(x), ReduceOp::sum, *host);
    OURO_RANK_OK(second);
    OURO_RANK_OK(all_reduce(c.world(), std::span(y), std::span(y)));  // in the caller: behind both
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

TEST_P(GpuTurns, WhatADeviceHasNotEndedIsWhereToResume) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  if (std::string_view(GetParam()) == "staged")
    GTEST_SKIP() << "there an operation ends on the host, in its turn";
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
        all_reduce(g, a.view(), a.view(), ReduceOp::max, *stream);  // 2: rank 1's stream does not come to it
    ASSERT_TRUE(w.ok()) << w.status().message();
    ASSERT_TRUE(exact_all_reduce(g).ok());  // 3
    ASSERT_FALSE(w->test());
    ASSERT_TRUE(exact_all_reduce(g).ok());  // 4: both have seen that
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
