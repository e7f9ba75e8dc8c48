// Operations on a fake that always does what CUDA does at times: loading and allocating wait for all work,
// and every device that is queried gets a context.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/device_memory/deferred_free.h"
#include "runtime/group/group.h"
#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

// Limit for calls that would wait for ever; correct calls do not wait at all.
constexpr auto kPatience = 1000ms;
constexpr std::size_t kCount = 3000;

/// A fake for one test. It is never destroyed, because pools of the process keep its events.
class GpuDriver : public testing::Test {
 protected:
  void SetUp() override { OURO_NEEDS_FAKES(); }
  void TearDown() override { gpu::install(nullptr); }
  gpu::FakeGpu& install(gpu::FakeOptions o) {
    auto* fake = new gpu::FakeGpu(std::move(o));
    gpu::install(fake);
    return *fake;
  }
};
class GpuDriverPaths : public GpuDriver, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GpuDriverPaths, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

/// The memory and the stream of a rank.
struct Seat {
  Floats data;
  Stream stream;
  void make(Context& c) {
    ASSERT_TRUE(data.make(c, kCount).ok());
    ASSERT_TRUE(data.fill(1).ok());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    stream = *s;
  }
};

/// One thread enqueues an all-reduce of one rank completely before that of the next: if a later rank waits
/// for the device, it waits for ever.
void expect_in_turn(const std::string& path, std::size_t ranks = 3) {
  const ForcedPath forced(path);
  const bool copies = path == "copies";  // this path reduces nothing
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(static_cast<int>(ranks), o);
  std::vector<Seat> seats(ranks);
  for (std::size_t r = 0; r < ranks; ++r) seats[r].make(contexts[r]);
  std::vector<Work> works;
  for (std::size_t r = 0; r < ranks; ++r) {
    const View v = seats[r].data.view();
    if (copies && r > 0) {
      ASSERT_TRUE(seats[r].data.fill(0).ok());
    }
    auto w = copies ? broadcast(contexts[r].world(), v, v, 0, seats[r].stream)
                    : all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seats[r].stream);
    ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
    works.push_back(*w);
  }
  for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
  for (std::size_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(seats[r].data.expect(copies ? 1.0f : static_cast<float>(ranks)), "");
    EXPECT_EQ(only_ran(contexts[r].world(), path), "");
  }
}

TEST_P(GpuDriverPaths, NoKernelIsLoadedWhileOthersWait) {
  auto& fake = install({.multiprocessors = 16, .harsh = {.lazy_loading = true, .patience = kPatience}});
  expect_in_turn(GetParam());
  EXPECT_EQ(fake.stalls(), 0);
}

/// Without the staged path, which pins a buffer of each rank (docs/limits.md).
class GpuDriverEnqueued : public GpuDriverPaths {};
INSTANTIATE_TEST_SUITE_P(All, GpuDriverEnqueued, testing::Values("leader", "resident", "stream"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuDriverEnqueued, NoMemoryIsAllocatedWhileOthersWait) {
  auto& fake = install({.multiprocessors = 16, .harsh = {.allocation_waits = true, .patience = kPatience}});
  expect_in_turn(GetParam());
  EXPECT_EQ(fake.stalls(), 0);
}

TEST_F(GpuDriver, CopiesAllocateNoMemoryWhileOthersWait) {
  auto& fake = install({.multiprocessors = 16, .harsh = {.allocation_waits = true, .patience = kPatience}});
  expect_in_turn("copies");
  EXPECT_EQ(fake.stalls(), 0);
}

/// An operation of one group waits for a rank that first closes another group.
TEST_P(GpuDriverPaths, EndingAGroupDoesNotWaitForOtherGroups) {
  const ForcedPath forced(GetParam());
  auto& fake = install({.multiprocessors = 16, .harsh = {.unmapping_waits = true, .patience = kPatience}});
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  {
    auto contexts = thread_contexts(2, o);
    std::vector<Seat> seats(2);
    std::vector<Group> first, second;
    const int both[] = {0, 1};
    for (std::size_t r = 0; r < 2; ++r) {
      seats[r].make(contexts[r]);
      first.push_back(*contexts[r].group(both, "first"));
      second.push_back(*contexts[r].group(both, "second"));
    }
    const auto reduce = [&](std::vector<Group>& g, std::size_t r) {
      const View v = seats[r].data.view();
      auto w = all_reduce(g[r], v, v, ReduceOp::sum, seats[r].stream);
      EXPECT_TRUE(w.ok()) << w.status().message();
    };
    for (auto* g : {&first, &second})
      for (std::size_t r = 0; r < 2; ++r) reduce(*g, r);
    for (Seat& s : seats) ASSERT_TRUE(s.stream.synchronize().ok());
    reduce(first, 0);
    for (Group& g : second) EXPECT_TRUE(g.close().ok());
    second.clear();
    EXPECT_EQ(fake.stalls(), 0);
    reduce(first, 1);
    for (Seat& s : seats) EXPECT_TRUE(s.stream.synchronize().ok());
    EXPECT_EQ(seats[0].data.expect(8), "");
  }
  EXPECT_TRUE(eventually([&] {  // the thread that ends an operation may be late
    rt::free_if_idle();
    return fake.live().registrations == 0;
  }));
  EXPECT_EQ(fake.stalls(), 0);
}

/// Everything in a stream needs a mark there, and the resources of the mark must be created before anything
/// is enqueued.
TEST_F(GpuDriver, EnqueueFailsFirstIfItsEventCannotBeMade) {
  auto& fake = install({.multiprocessors = 16});
  Watchdog watchdog;
  auto contexts = thread_contexts(1);
  Seat seat;
  seat.make(contexts[0]);
  // Empties the pool, so that the next event must be created.
  std::vector<std::shared_ptr<rt::PooledEvent>> taken;
  for (const int made = fake.live().events; fake.live().events == made;)
    taken.push_back(*rt::PooledEvent::take(0));
  DeviceArena out;
  ASSERT_TRUE(out.make(contexts[0], 4 * kCount, From::ouro).ok());
  ASSERT_TRUE(out.write(std::vector<std::byte>(4 * kCount, std::byte{7})).ok());
  const View to(out.data(), kCount, DType::f32, contexts[0].device());
  fake.fail_next(gpu::FakeOp::create, Reason::resource);
  auto w = all_reduce(contexts[0].world(), seat.data.view(), to, ReduceOp::sum, seat.stream);
  EXPECT_THAT(w.ok() ? w->wait() : w.status(), Fails(Reason::resource));
  EXPECT_TRUE(seat.stream.synchronize().ok());
  EXPECT_EQ(*out.read(), std::vector<std::byte>(4 * kCount, std::byte{7})) << "the device worked on";
}

/// Ranks that are threads, on one stream: the first would wait in the stream for the second, which is
/// behind it.
TEST_P(GpuDriverEnqueued, TwoRanksOnOneStreamAreRefused) {
  const ForcedPath forced(GetParam());
  install({.multiprocessors = 16});
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  void* const legacy = gpu::kLegacyStream;
  void* const made = gpu::gpu().create_stream(0, 0)->handle;
  for (const auto& [first, second] :
       {std::pair{made, made}, std::pair{legacy, static_cast<void*>(nullptr)}}) {
    auto contexts = thread_contexts(2, o);
    std::vector<Seat> seats(2);
    for (std::size_t r = 0; r < 2; ++r) {
      seats[r].make(contexts[r]);
      auto s = Stream::cuda(r == 0 ? first : second, 0);
      ASSERT_TRUE(s.ok());
      seats[r].stream = *s;
    }
    const auto reduce = [&](std::size_t r) {
      const View v = seats[r].data.view();
      return all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seats[r].stream);
    };
    auto waits = reduce(0);
    ASSERT_TRUE(waits.ok()) << waits.status().message();
    const Status refused = reduce(1).status();
    EXPECT_THAT(refused, Fails(Reason::invalid));
    EXPECT_TRUE(has(refused.message(), "ranks 0 and 1, threads of one process, are on one stream"))
        << refused.message();
    EXPECT_THAT(waits->wait(), Fails(Reason::invalid));
    EXPECT_TRUE(gpu::gpu().synchronize(gpu::Stream{0, first}).ok());
  }
}

/// One handle stands for a different stream on each thread: these keep the order of a group like other
/// streams, and none may be used on another thread.
TEST_F(GpuDriver, PerThreadDefaultStreamsAreDistinctStreams) {
  auto& fake = install({.multiprocessors = 16});
  Watchdog watchdog;
  auto contexts = thread_contexts(1);
  Context& c = contexts[0];
  Seat seat;
  seat.make(c);
  Floats result;
  ASSERT_TRUE(result.make(c, kCount).ok() && result.fill(0).ok());
  const auto of_thread = [] { return *Stream::cuda(gpu::kThreadStream, 0); };
  const Stream mine = of_thread();
  fake.delay(gpu::FakeOp::kernel, std::chrono::milliseconds(20));
  fake.delay(gpu::FakeOp::copy, std::chrono::milliseconds(20));
  ASSERT_TRUE(all_reduce(c.world(), seat.data.view(), seat.data.view(), ReduceOp::sum, mine).ok());
  ASSERT_TRUE(all_reduce(c.world(), seat.data.view(), result.view(), ReduceOp::sum, mine).ok());
  std::thread([&] {
    const Status wrong =
        all_reduce(c.world(), seat.data.view(), seat.data.view(), ReduceOp::sum, mine).status();
    EXPECT_THAT(wrong, Fails(Reason::invalid));
    EXPECT_TRUE(has(wrong.message(), "cudaStreamPerThread")) << wrong.message();
    Floats& twice = seat.data;
    auto w = all_reduce(c.world(), result.view(), twice.view(), ReduceOp::sum, of_thread());
    EXPECT_TRUE(w.ok() && w->wait().ok());
    fake.delay(gpu::FakeOp::copy, std::chrono::milliseconds(0));
    EXPECT_EQ(twice.expect(1), "") << "it did not wait for what the other thread had enqueued";
  }).join();
}

/// A setting that users of Megatron need: all streams share one queue, in which a wait for another rank would
/// hold up that rank. Collectives, messages and functions then run inside their calls.
TEST_F(GpuDriver, OneHardwareQueueMakesThreadRanksRunInsideTheirCalls) {
  install({.multiprocessors = 16, .harsh = {.connections = 1}});
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(2, o);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Seat seat;
    seat.make(c);
    const View v = seat.data.view();
    auto why = c.world().explain(Collective::all_reduce, kCount, DType::f32, ReduceOp::sum, Numerics::inherit,
                                 c.device());
    ASSERT_TRUE(why.ok());
    EXPECT_TRUE(has(*why, "too few hardware queues")) << *why;
    for (int k = 0; k < 3; ++k) {
      auto w = all_reduce(c.world(), v, v, ReduceOp::sum, seat.stream);
      ASSERT_TRUE(w.ok()) << w.status().message();
    }
    auto moved = rank == 0 ? send(c.world(), v, 1, 0, seat.stream) : recv(c.world(), v, 0, 0, seat.stream);
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    std::vector<float> here(10, 1);
    auto w = all_reduce(c.world(), std::span(here), std::span(here), ReduceOp::sum, seat.stream);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_TRUE(w->wait().ok()) << w->wait().message();
    EXPECT_EQ(here[9], 2.0f);
    EXPECT_TRUE(moved->wait().ok()) << moved->wait().message();
    EXPECT_EQ(seat.data.expect(8), "");
    EXPECT_EQ(only_ran(c.world(), "staged"), "");
    ASSERT_TRUE(barrier(c.world()).ok());
  });
}

/// A rank that is far ahead fills its stream. If the driver blocked it there, it would hold up the rank that
/// it waits for.
TEST_P(GpuDriverEnqueued, RankFarAheadDoesNotBlockTheRankItWaitsFor) {
  const ForcedPath forced(GetParam());
  auto& fake = install({.multiprocessors = 16, .harsh = {.depth = 400, .patience = kPatience}});
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(2, o);
  std::atomic<int> ahead{0};
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Seat seat;
    seat.make(c);
    const View v = seat.data.view();
    if (rank == 1) {
      EXPECT_TRUE(eventually([&] { return ahead >= 10; }));
      std::this_thread::sleep_for(30ms);  // time for an unblocked rank to fill its stream
    }
    Work last;
    for (int k = 0; k < 60; ++k) {
      auto w = all_reduce(c.world(), v, v, ReduceOp::max, seat.stream);
      ASSERT_TRUE(w.ok()) << w.status().message();
      last = *w;
      ahead += rank == 0;
    }
    EXPECT_TRUE(last.wait().ok()) << last.wait().message();
    EXPECT_EQ(only_ran(c.world(), GetParam()), "");
    EXPECT_EQ(seat.data.expect(1), "");
  });
  EXPECT_EQ(fake.stalls(), 0);
}

TEST_F(GpuDriver, FourHardwareQueuesARankSuffice) {
  install({.multiprocessors = 16, .harsh = {.connections = 8}});
  Watchdog watchdog;
  expect_in_turn("leader", 2);
}

/// Every stream may take one of 32 hardware queues, and those of the users come first.
TEST_F(GpuDriver, ThreadRanksShareTheStreamsOfTheLibrary) {
  constexpr int kRanks = 8;
  auto& fake = install({.multiprocessors = 16});
  const ForcedPath forced("leader");
  Watchdog watchdog;
  auto contexts = thread_contexts(kRanks);
  std::vector<Seat> seats(kRanks);
  for (int r = 0; r < kRanks; ++r)
    seats[static_cast<std::size_t>(r)].make(contexts[static_cast<std::size_t>(r)]);
  const int before = fake.live().streams;
  on_threads(kRanks, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Seat& seat = seats[static_cast<std::size_t>(rank)];
    auto w = all_reduce(c.world(), seat.data.view(), seat.data.view(), ReduceOp::sum, seat.stream);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_TRUE(w->wait().ok()) << w->wait().message();
    EXPECT_EQ(seat.data.expect(kRanks), "");
    EXPECT_EQ(only_ran(c.world(), "leader"), "");
  });
  EXPECT_EQ(fake.live().streams - before, 2) << "they set words after a failure";
}

/// A driver that is too old counts as none: ranks join without a GPU, and a rank that requests a GPU is
/// told why.
TEST_F(GpuDriver, OldDriverCountsAsNoGpuAndIsNamed) {
  const auto old = gpu::no_gpu("the driver is for CUDA 12.4, older than the 13.0 that ouro was built with");
  gpu::install(old.get());
  Watchdog watchdog;
  {
    auto contexts = thread_contexts(1);
    EXPECT_EQ(contexts[0].device(), Device());
    EXPECT_TRUE(exact_all_reduce(contexts[0].world()).ok());
  }
  InitOptions asks;
  asks.gpu = 0;
  const Status s = Context::threads(1, asks).status();
  EXPECT_THAT(s, Fails(Reason::invalid));
  EXPECT_TRUE(has(s.message(), "older than the 13.0")) << s.message();
}

TEST_F(GpuDriver, RankUsesNoDeviceButItsOwn) {
  auto& fake = install({.devices = 8, .multiprocessors = 16});
  auto contexts = thread_contexts(2);
  EXPECT_EQ(contexts[1].device().index, 1);
  EXPECT_EQ(fake.contexts(), 2);
}

}  // namespace
}  // namespace ouro::test
