// The algorithm `nvls` on emulated devices with multicast objects: refusals with their messages, graphs, a
// rank that is killed. collectives_test.cc tests its results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

#include "runtime/device_memory/deferred_free.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using gpu::gpu;

const CallOptions kSwitched{.algorithm = "nvls"};
gpu::FakeOptions with_multicast() { return {.multiprocessors = 16, .multicast = true}; }

/// Checks the error of a refused call, and that the next call succeeds.
std::string refused(Group& g, const Status& s, Reason reason, const char* part) {
  OURO_RANK_CHECK(s.reason() == reason, "{}: {}", name(s.reason()), s.message());
  OURO_RANK_CHECK(s.message().find(part) != std::string::npos, "no '{}' in {}", part, s.message());
  OURO_RANK_OK(g.status());
  return "";
}
#define OURO_REFUSED(...) \
  if (std::string said = refused(__VA_ARGS__); !said.empty()) return said

TEST(GpuSwitch, UnsupportedCallsAreRefusedWithAMessage) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes(with_multicast());
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    Floats x;
    OURO_RANK_OK(x.make(c, 600));
    OURO_RANK_OK(x.fill(2));
    const auto as = [&](DType t) { return View(x.arena.data(), 100, t, c.device()); };
    OURO_REFUSED(g,
                 all_reduce(g, x.view(), x.view(), ReduceOp::sum,
                            {.numerics = Numerics::canonical, .algorithm = "nvls"}),
                 Reason::invalid, "it does not reduce in rank order (canonical)");
    OURO_REFUSED(g, all_reduce(g, x.view(), x.view(), ReduceOp::max, kSwitched), Reason::unsupported,
                 "all_reduce by nvls: a switch has no such reduction of this type");
    OURO_REFUSED(g, all_reduce(g, as(DType::i8), as(DType::i8), ReduceOp::sum, kSwitched),
                 Reason::unsupported, "no such reduction");
    OURO_REFUSED(g, all_reduce(g, as(DType::f16), as(DType::f16), ReduceOp::avg, kSwitched),
                 Reason::unsupported, "no such reduction");
    std::vector<float> host(8, 1);
    OURO_REFUSED(g, all_reduce(g, std::span(host), std::span(host), ReduceOp::sum, kSwitched),
                 Reason::invalid, "this is memory of the host");
    const rt::Operation said{
        .collective = Collective::all_reduce, .in = x.view(), .out = x.view(), .algorithm = "nvls"};
    auto why = g.impl()->explain(said);
    OURO_RANK_OK(why);
    OURO_RANK_CHECK(*why == "resident nvls: asked for by name", "{}", *why);
    OURO_RANK_OK(all_reduce(g, x.view(), x.view(), ReduceOp::sum, kSwitched));
    OURO_EXPECT_ALL(x, 2.0f * static_cast<float>(g.size()));
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// OURO_ALGO=nvls does not apply to memory of the host.
TEST(GpuSwitch, JobAlgorithmAppliesToDeviceMemoryOnly) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes(with_multicast());
  setenv("OURO_ALGO", "nvls", 1);
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<float> host(8, 1);
    OURO_RANK_OK(all_reduce(g, std::span(host), std::span(host)));
    OURO_RANK_CHECK(host[7] == 3, "{}", host[7]);
    Floats x;
    OURO_RANK_OK(x.make(c, 70'001));
    OURO_RANK_OK(x.fill(1));
    OURO_RANK_OK(all_reduce(g, x.view(), x.view()));
    OURO_EXPECT_ALL(x, 3);
    return only_ran(g, "resident");
  };
  EXPECT_EQ(run_threads(3, body), "");
  unsetenv("OURO_ALGO");
}

std::string refuses_by(Context& c, const char* why) {
  Group& g = c.world();
  Floats x;
  OURO_RANK_OK(x.make(c, 600));
  OURO_RANK_OK(x.fill(2));
  OURO_REFUSED(g, all_reduce(g, x.view(), x.view(), ReduceOp::sum, kSwitched), Reason::unsupported, why);
  OURO_RANK_OK(all_reduce(g, x.view(), x.view()));
  OURO_EXPECT_ALL(x, 2.0f * static_cast<float>(g.size()));
  return "";
}

TEST(GpuSwitch, NeedsMulticastOnEachGpu) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes({.multiprocessors = 16});
  EXPECT_EQ(run_threads(3, [](Context& c) { return refuses_by(c, "has no multicast objects"); }), "");
}

/// Kernels compiled without the instructions would run on any later GPU, and trap.
TEST(GpuSwitch, NeedsKernelsThatWereCompiledForIt) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes({.multiprocessors = 16, .multicast = true, .architecture = 80});
  EXPECT_EQ(run_threads(3, [](Context& c) { return refuses_by(c, "has no multicast objects"); }), "");
}

TEST(GpuSwitch, NeedsAGpuForEachRank) {
  OURO_NEEDS_FAKES();
  gpu::FakeGpu one({.devices = 1, .multiprocessors = 16, .multicast = true});
  gpu::install(&one);
  EXPECT_EQ(run_threads(2, [](Context& c) { return refuses_by(c, "ranks share a GPU"); }), "");
  gpu::install(nullptr);
}

/// Uses a group of its own, in which a step fails once on one device.
std::string fails_alike(Context& c, Reason reason, FakeForEach& fakes) {
  constexpr int kAll[] = {0, 1, 2};
  {
    auto g = c.group(kAll, "switched");
    OURO_RANK_OK(g);
    Floats x;
    OURO_RANK_OK(x.make(c, 600));
    OURO_RANK_OK(x.fill(1));
    for (int k = 0; k < 2; ++k) {
      const Status s = all_reduce(*g, x.view(), x.view(), ReduceOp::sum, kSwitched);
      OURO_RANK_CHECK(s.reason() == reason && s.message().find("planted") != std::string::npos,
                      "call {}: {}: {}", k, name(s.reason()), s.message());
    }
    OURO_RANK_CHECK(g->status().ok() == (reason == Reason::unsupported), "{}", g->status().message());
    if (reason == Reason::unsupported) {
      OURO_RANK_OK(all_reduce(*g, x.view(), x.view()));
      OURO_EXPECT_ALL(x, 3);
    }
  }
  OURO_RANK_OK(barrier(c.world()));
  const bool back = eventually([&] {
    rt::free_if_idle();
    return fakes.live().multicasts == 0;
  });
  OURO_RANK_CHECK(back, "{} are left", fakes.live().multicasts);
  OURO_RANK_OK(barrier(c.world()));
  return "";
}

struct Failing {
  const char* step;
  int device;
  Reason reason;
};
class GpuSwitchSteps : public testing::TestWithParam<Failing> {};
INSTANTIATE_TEST_SUITE_P(
    All, GpuSwitchSteps,
    testing::Values(Failing{"create", 0, Reason::unsupported}, Failing{"import", 2, Reason::unsupported},
                    Failing{"join", 0, Reason::unsupported}, Failing{"join", 1, Reason::unsupported},
                    Failing{"bind", 2, Reason::unsupported}, Failing{"create", 0, Reason::resource},
                    Failing{"bind", 1, Reason::resource}),
    [](const auto& p) {
      return fmt::format("{}_{}_{}", p.param.step, p.param.device, name(p.param.reason));
    });

/// Whichever rank fails, all must learn of it, even if the step would succeed the next time: a rank that
/// continued alone would wait for the others. The memory of ranks that had got further is released.
TEST_P(GpuSwitchSteps, FailedStepIsReportedOnAllRanks) {
  OURO_NEEDS_FAKES();
  const Failing& p = GetParam();
  std::atomic<bool> planted{false};
  gpu::FakeOptions options = with_multicast();
  options.multicasting = [&](std::string_view step, int device) {
    const bool fails = step == p.step && device == p.device && !planted.exchange(true);
    return fails ? Status(p.reason, "planted") : Status();
  };
  FakeForEach fakes(options);
  EXPECT_EQ(run_threads(3, [&](Context& c) { return fails_alike(c, p.reason, fakes); }), "");
  EXPECT_TRUE(planted);
}

/// A step for which there is no memory has failed like any other, for those who ask for it later, too.
class GpuSwitchNoMemory : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GpuSwitchNoMemory, testing::Values("create", "import", "join", "bind"),
                         [](const auto& p) { return p.param; });

TEST_P(GpuSwitchNoMemory, FailsTheCallOnAllRanks) {
  OURO_NEEDS_FAKES();
  const std::string_view step = GetParam();
  std::atomic<bool> planted{false};
  gpu::FakeOptions options = with_multicast();
  options.multicasting = [&](std::string_view at, int device) {
    if (at == step && device == (step == "create" ? 0 : 1) && !planted.exchange(true)) throw std::bad_alloc();
    return Status();
  };
  const FakeForEach fakes(options);
  const auto body = [](Context& c) -> std::string {
    constexpr int kAll[] = {0, 1, 2};
    auto g = c.group(kAll, "switched");
    OURO_RANK_OK(g);
    Floats x;
    OURO_RANK_OK(x.make(c, 600));
    OURO_RANK_OK(x.fill(1));
    for (int k = 0; k < 2; ++k) {
      const Status s = all_reduce(*g, x.view(), x.view(), ReduceOp::sum, kSwitched);
      OURO_RANK_CHECK(s.reason() == Reason::resource, "call {}: {}: {}", k, name(s.reason()), s.message());
    }
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
  EXPECT_TRUE(planted);
}

/// Two groups whose first ranks differ make their objects at the same time. Whoever makes one serves what the
/// others ask for meanwhile, so it must not wait for them.
TEST(GpuSwitch, GroupsWithDifferentFirstRanksStartConcurrently) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const FakeForEach fakes(with_multicast());
  const auto body = [](Context& c) -> std::string {
    for (int k = 0; k < 8; ++k) {
      std::string said[2];
      std::vector<Group> groups;
      for (const std::vector<int>& ranks : {std::vector<int>{0, 1, 2}, std::vector<int>{1, 0, 2}}) {
        auto g = c.group(ranks, fmt::format("{} first, {}", ranks[0], k));
        OURO_RANK_OK(g);
        groups.push_back(std::move(*g));
      }
      OURO_RANK_OK(barrier(c.world()));
      on_threads(2, [&](int t) {
        const auto i = static_cast<std::size_t>(t);
        said[i] = [&]() -> std::string {
          Floats x;
          OURO_RANK_OK(x.make(c, 600));
          OURO_RANK_OK(x.fill(1));
          OURO_RANK_OK(all_reduce(groups[i], x.view(), x.view(), ReduceOp::sum, kSwitched));
          OURO_EXPECT_ALL(x, 3);
          return "";
        }();
      });
      OURO_RANK_CHECK(said[0].empty() && said[1].empty(), "{} {}", said[0], said[1]);
      OURO_RANK_OK(barrier(c.world()));
    }
    return "";
  };
  EXPECT_EQ(run_processes(3, body), "");
}

/// One thread enqueues the call of each rank in full before the next: the first makes the object and the
/// memory of all, and nothing that the later ones do waits for a device on which a kernel waits for them.
TEST(GpuSwitch, NoMemoryIsAllocatedWhileOthersWait) {
  OURO_NEEDS_FAKES();
  gpu::FakeOptions options = with_multicast();
  options.devices = 3;
  options.harsh = {.lazy_loading = true, .allocation_waits = true, .patience = 1000ms};
  auto* const fake = new gpu::FakeGpu(std::move(options));  // pools of the process keep events of it
  gpu::install(fake);
  {
    Watchdog watchdog;
    InitOptions o;
    o.deadline = 5s;
    auto contexts = thread_contexts(3, o);
    std::vector<Floats> data(3);
    std::vector<Stream> streams;
    std::vector<Work> works;
    for (std::size_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(data[r].make(contexts[r], 3000).ok());
      ASSERT_TRUE(data[r].fill(1).ok());
      streams.push_back(*Stream::create(contexts[r].device()));
    }
    for (int k = 0; k < 2; ++k)
      for (std::size_t r = 0; r < 3; ++r) {
        const View v = data[r].view();
        auto w = all_reduce(contexts[r].world(), v, v, ReduceOp::sum, streams[r], kSwitched);
        ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
        works.push_back(*w);
      }
    for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
    for (Floats& x : data) EXPECT_EQ(x.expect(9), "");
    EXPECT_EQ(fake->stalls(), 0);
  }
  gpu::install(nullptr);
}

/// The first operation of a group is captured: its object is made meanwhile, and kept.
TEST(GpuSwitch, FirstOperationMayBeCaptured) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes(with_multicast());
  const auto body = [](Context& c) -> std::string {
    auto made = gpu().create_stream(c.device().index, 0);
    OURO_RANK_OK(made);
    {
      auto s = Stream::cuda(made->handle, made->device);
      OURO_RANK_OK(s);
      Floats x;
      OURO_RANK_OK(x.make(c, 5'000));
      OURO_RANK_OK(x.fill(1));
      OURO_RANK_OK(gpu().begin_capture(*made));
      OURO_RANK_OK(all_reduce(c.world(), x.view(), x.view(), ReduceOp::sum, *s, kSwitched));
      auto graph = gpu().end_capture(*made);
      OURO_RANK_OK(graph);
      for (int i = 0; i < 2; ++i) OURO_RANK_OK(gpu().launch(*graph, *made));
      OURO_RANK_OK(s->synchronize());
      OURO_EXPECT_ALL(x, 9);
      OURO_RANK_OK(gpu().destroy_graph(*graph));
      OURO_RANK_OK(barrier(c.world()));
    }
    OURO_RANK_OK(gpu().destroy_stream(*made));
    return only_ran(c.world(), "resident");
  };
  EXPECT_EQ(run_threads(3, body), "");
}

TEST(GpuSwitch, GraphsReplay) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes(with_multicast());
  const auto body = [](Context& c) -> std::string {
    auto made = gpu().create_stream(c.device().index, 0);
    OURO_RANK_OK(made);
    {
      auto s = Stream::cuda(made->handle, made->device);
      OURO_RANK_OK(s);
      Floats a, b;
      OURO_RANK_OK(a.make(c, 20'000));
      OURO_RANK_OK(b.make(c, 20'000));
      OURO_RANK_OK(a.fill(1));
      const auto sum = [&] {
        return all_reduce(c.world(), a.view(), b.view(), ReduceOp::sum, *s, kSwitched);
      };
      auto first = sum();
      OURO_RANK_OK(first);
      OURO_RANK_OK(first->wait());
      OURO_RANK_OK(barrier(c.world()));
      OURO_RANK_OK(gpu().begin_capture(*made));
      OURO_RANK_OK(sum());
      OURO_RANK_OK(broadcast(c.world(), b.view(), a.view(), 1, *s, kSwitched));
      auto graph = gpu().end_capture(*made);
      OURO_RANK_OK(graph);
      float v = 1;
      for (int i = 0; i < 4; ++i) {
        OURO_RANK_OK(gpu().launch(*graph, *made));
        v *= 3;
        OURO_RANK_OK(sum());  // between replays
        OURO_RANK_OK(s->synchronize());
        OURO_EXPECT_ALL(b, 3 * v);
        OURO_EXPECT_ALL(a, v);
      }
      OURO_RANK_OK(gpu().destroy_graph(*graph));
      OURO_RANK_OK(barrier(c.world()));
    }
    OURO_RANK_OK(gpu().destroy_stream(*made));
    return only_ran(c.world(), "resident");
  };
  EXPECT_EQ(run_threads(3, body), "");
}

TEST(TimedGpuSwitch, RankKilledInMidCollectiveFailsItOnTheOthers) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const FakeForEach fakes(with_multicast());
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Floats x;
    ASSERT_TRUE(x.make(*joined, 100'000).ok());
    const auto sum = [&](Group& g) { return all_reduce(g, x.view(), x.view(), ReduceOp::sum, kSwitched); };
    ASSERT_TRUE(sum(joined->world()).ok());
    board.stage[rank] = 1;
    Status s;
    while (s.ok()) s = sum(joined->world());
    board.heard_ns[rank] = now_ns();
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    EXPECT_THAT(sum(joined->world()), Fails(Reason::peer_dead, 2));  // the error is sticky
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    ASSERT_TRUE(x.fill(1).ok());
    EXPECT_TRUE(sum(*rest).ok());
    EXPECT_EQ(x.expect(2), "");
    EXPECT_EQ(only_ran(*rest, "resident"), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({2});
  ranks.join({2});
  for (int r : {0, 1})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
}

}  // namespace
}  // namespace ouro::test
