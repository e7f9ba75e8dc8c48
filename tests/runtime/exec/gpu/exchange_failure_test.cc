// Exchanges that cannot end: ranks die, are late or leave, and drivers that wait. Also graphs of exchanges.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

constexpr std::size_t kLong =
    100'000;  // floats: longer than a slot, so that the sender waits for the receiver

/// The path on which exchanges move: by kernels, or through the host.
class GpuExchangeFailure : public testing::TestWithParam<const char*> {
 protected:
  bool kernels() const { return std::string_view(GetParam()) == "resident"; }
};
INSTANTIATE_TEST_SUITE_P(All, GpuExchangeFailure, testing::Values("resident", "staged"),
                         [](const auto& info) { return info.param; });
class TimedGpuExchangeFailure : public GpuExchangeFailure {};
INSTANTIATE_TEST_SUITE_P(All, TimedGpuExchangeFailure, testing::Values("resident", "staged"),
                         [](const auto& info) { return info.param; });

/// Two buffers and a stream.
struct Ends {
  Floats out, in;
  Stream stream;
  Status make(Context& c, std::size_t count = kLong) {
    OURO_TRY(out.make(c, count));
    OURO_TRY(in.make(c, count));
    OURO_ASSIGN(stream, Stream::create(c.device()));
    return {};
  }
  /// To the next rank and from the previous one.
  std::vector<Transfer> ring(const Group& g) const {
    const int n = g.size();
    return {Transfer::send_to((g.rank() + 1) % n, out.view()),
            Transfer::receive_from((g.rank() + n - 1) % n, in.view())};
  }
  bool drains() const {
    Event mark;
    mark.record(stream);
    return mark.synchronize(5s).ok();
  }
};

TEST_P(TimedGpuExchangeFailure, RankKilledInTheMiddleFailsTheOthers) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const ForcedPath path(GetParam(), Mode::processes);
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(4, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 4, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Group& g = joined->world();
    Ends ends;
    ASSERT_TRUE(ends.make(*joined).ok());
    ASSERT_TRUE(exchange(g, ends.ring(g)).ok());
    board.stage[rank] = 1;
    Status s;
    while (s.ok()) {
      auto w = exchange(g, ends.ring(g), ends.stream);
      s = w.ok() ? w->wait() : w.status();
    }
    board.heard_ns[rank] = now_ns();
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    EXPECT_THAT(exchange(g, ends.ring(g)), Fails(Reason::peer_dead, 2)) << "the error is sticky";
    EXPECT_TRUE(ends.drains()) << "a stream waits on";
    EXPECT_EQ(g.impl()->exchanged_by_kernels() > 0, kernels());
    auto rest = g.shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    const Status again = exchange(*rest, ends.ring(*rest));
    EXPECT_TRUE(again.ok()) << again.message();
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({2});
  ranks.join({2});
  for (int r : {0, 1, 3})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
}

/// Whoever does not answer is named; ranks that take no part are not, and are not waited for.
TEST_P(GpuExchangeFailure, LateRankIsNamedAtTheDeadline) {
  OURO_NEEDS_FAKES();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  InitOptions o;
  o.deadline = Milliseconds(300);
  auto contexts = thread_contexts(3, o);
  on_threads(3, [&](int rank) {
    if (rank != 0) return;
    Context& c = contexts[0];
    Ends ends;
    ASSERT_TRUE(ends.make(c).ok());
    const std::vector<Transfer> one{Transfer::receive_from(2, ends.in.view())};
    auto w = exchange(c.world(), one, ends.stream);
    ASSERT_TRUE(w.ok()) << w.status().message();
    const Status s = w->wait();
    EXPECT_THAT(s, Fails(Reason::deadline));
    if (kernels()) {
      EXPECT_THAT(s, Fails(Reason::deadline, 2));
      EXPECT_TRUE(has(s.message(), "rank 2 has not sent or taken")) << s.message();
    }
    EXPECT_TRUE(ends.drains()) << "a stream waits on";
  });
}

/// A message in a slot outlives its sender's exchange; a rank that leaves without having sent is named.
TEST_P(GpuExchangeFailure, RankThatLeavesIsNamedUnlessItHasSent) {
  OURO_NEEDS_FAKES();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    const int both[] = {0, 1};
    auto g = c.group(both, "leaves");
    ASSERT_TRUE(g.ok());
    Ends ends;
    ASSERT_TRUE(ends.make(c, 100).ok());
    if (rank == 1) {
      ASSERT_TRUE(ends.out.fill(5).ok());
      const Transfer t = Transfer::send_to(0, ends.out.view());
      const Status sent = exchange(*g, std::span(&t, 1));
      EXPECT_TRUE(sent.ok()) << sent.message();
      EXPECT_TRUE(g->close().ok());
      return;
    }
    std::this_thread::sleep_for(100ms);
    const Transfer t = Transfer::receive_from(1, ends.in.view());
    const Status received = exchange(*g, std::span(&t, 1));
    EXPECT_TRUE(received.ok()) << received.message();
    EXPECT_EQ(ends.in.expect(5), "");
    EXPECT_THAT(exchange(*g, std::span(&t, 1)), Fails(Reason::peer_dead, 1));
  });
}

TEST_P(GpuExchangeFailure, AbortEndsAnExchange) {
  OURO_NEEDS_FAKES();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Ends ends;
    ASSERT_TRUE(ends.make(c).ok());
    if (rank == 0) {
      const Transfer t = Transfer::send_to(1, ends.out.view());
      auto w = exchange(c.world(), std::span(&t, 1), ends.stream);
      ASSERT_TRUE(w.ok()) << w.status().message();
      EXPECT_THAT(w->wait(), Fails(Reason::revoked));
      EXPECT_TRUE(ends.drains()) << "a stream waits on";
    } else {
      std::this_thread::sleep_for(50ms);
      c.world().abort("no longer needed");
    }
  });
}

// ---- graphs

/// Numbers of messages are in the memory of the device, so a captured exchange can be replayed, and be mixed
/// with others.
TEST(GpuExchangeGraphs, Replay) {
  OURO_NEEDS_FAKES();
  for (const Mode mode : {Mode::processes, Mode::threads}) {  // a process with threads cannot fork ranks
    if (OURO_TEST_TSAN && mode == Mode::processes) continue;
    const ForcedPath path("resident", mode);
    ASSERT_EQ(run(mode, 3,
                  [&](Context& c) -> std::string {
                    Group& g = c.world();
                    auto made = gpu::gpu().create_stream(c.device().index, 0);
                    OURO_RANK_OK(made);
                    auto s = Stream::cuda(made->handle, made->device);
                    OURO_RANK_OK(s);
                    Ends big, small;
                    OURO_RANK_OK(big.make(c, 40'000));
                    OURO_RANK_OK(small.make(c, 3));
                    OURO_RANK_OK(exchange(g, big.ring(g), *s));  // makes what is made at first use
                    OURO_RANK_OK(s->synchronize());
                    OURO_RANK_OK(barrier(g));
                    std::vector<Transfer> both = big.ring(g);
                    for (const Transfer& t : small.ring(g)) both.push_back(t);
                    OURO_RANK_OK(gpu::gpu().begin_capture(*made));
                    OURO_RANK_OK(exchange(g, both, *s));
                    OURO_RANK_OK(exchange(g, small.ring(g), *s));
                    auto graph = gpu::gpu().end_capture(*made);
                    OURO_RANK_OK(graph);
                    const int previous = (g.rank() + 2) % 3;
                    for (int k = 0; k < 30; ++k) {
                      OURO_RANK_OK(big.out.fill(static_cast<float>(10 * k + g.rank())));
                      OURO_RANK_OK(small.out.fill(static_cast<float>(-10 * k - g.rank())));
                      OURO_RANK_OK(gpu::gpu().launch(*graph, *made));
                      if (k % 3 == 0) OURO_RANK_OK(exchange(g, big.ring(g), *s));
                      OURO_RANK_OK(s->synchronize());
                      OURO_EXPECT_ALL(big.in, static_cast<float>(10 * k + previous));
                      OURO_EXPECT_ALL(small.in, static_cast<float>(-10 * k - previous));
                      OURO_RANK_OK(barrier(g));  // short messages leave before they are taken
                    }
                    OURO_RANK_OK(gpu::gpu().destroy_graph(*graph));
                    return "";
                  }),
              "")
        << name(mode);
  }
}

// ---- drivers that wait

/// One thread enqueues the exchange of one rank completely before that of the next. If a later rank waits for
/// the device, it waits for ever.
void expect_exchange_in_turn(gpu::FakeOptions options) {
  auto* fake = new gpu::FakeGpu(std::move(options));  // never destroyed: pools of the process keep its events
  gpu::install(fake);
  {
    const ForcedPath forced("resident");
    Watchdog watchdog;
    InitOptions o;
    o.deadline = 5s;
    auto contexts = thread_contexts(3, o);
    std::vector<Ends> ends(3);
    for (std::size_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(ends[r].make(contexts[r]).ok());
      ASSERT_TRUE(ends[r].out.fill(static_cast<float>(r)).ok());
    }
    std::vector<Work> works;
    for (std::size_t r = 0; r < 3; ++r) {
      std::vector<Transfer> many;  // more than the arguments of a launch have room for
      for (int k = 0; k < 40; ++k)
        for (const Transfer& t : ends[r].ring(contexts[r].world())) many.push_back(t);
      auto w = exchange(contexts[r].world(), many, ends[r].stream);
      ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
      works.push_back(*w);
    }
    for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(ends[r].in.expect(static_cast<float>((r + 2) % 3)), "");
      EXPECT_EQ(contexts[r].world().impl()->exchanged_by_kernels(), 1u);
    }
  }
  EXPECT_EQ(fake->stalls(), 0);
  gpu::install(nullptr);
}

constexpr auto kPatience = 1000ms;

TEST(GpuExchangeDriver, NoKernelIsLoadedWhileOthersWait) {
  OURO_NEEDS_FAKES();
  expect_exchange_in_turn({.multiprocessors = 16, .harsh = {.lazy_loading = true, .patience = kPatience}});
}
TEST(GpuExchangeDriver, NoMemoryIsAllocatedWhileOthersWait) {
  OURO_NEEDS_FAKES();
  expect_exchange_in_turn(
      {.multiprocessors = 16, .harsh = {.allocation_waits = true, .patience = kPatience}});
}
TEST(GpuExchangeDriver, NoMemoryIsAllocatedWhileOtherDevicesWait) {
  OURO_NEEDS_FAKES();
  expect_exchange_in_turn(
      {.devices = 3, .multiprocessors = 16, .harsh = {.allocation_waits = true, .patience = kPatience}});
}

/// With too few hardware queues for the ranks of a process, a kernel that waits would hold up the next rank.
TEST(GpuExchangeDriver, CrowdedQueuesGoThroughTheHost) {
  OURO_NEEDS_FAKES();
  auto* fake = new gpu::FakeGpu({.multiprocessors = 16, .harsh = {.connections = 1, .patience = kPatience}});
  gpu::install(fake);
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          Ends ends;
                          OURO_RANK_OK(ends.make(c, 100));
                          OURO_RANK_OK(ends.out.fill(static_cast<float>(g.rank())));
                          OURO_RANK_OK(exchange(g, ends.ring(g), ends.stream));
                          OURO_RANK_OK(ends.stream.synchronize());
                          OURO_EXPECT_ALL(ends.in, static_cast<float>(1 - g.rank()));
                          OURO_RANK_CHECK(g.impl()->exchanged_by_kernels() == 0, "by kernels");
                          return "";
                        }),
            "");
  gpu::install(nullptr);
}

}  // namespace
}  // namespace ouro::test
