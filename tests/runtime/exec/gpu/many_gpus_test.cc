// Ranks that are threads with a GPU each, on emulated devices that always do what a driver does at times:
// nothing that an operation needs waits for a device on which another rank's kernel spins.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/counting_gpu.h"
#include "kernels/device/fake/fake_gpu.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

// Limit for calls that would wait for ever; correct calls do not wait at all.
constexpr auto kPatience = 1000ms;
constexpr int kRanks = 3;
constexpr std::size_t kCount = 3000, kMany = 300'000;  // elements, for packets and by pointer

class GpuEach : public testing::Test {
 protected:
  void SetUp() override { OURO_NEEDS_FAKES(); }
  void TearDown() override { gpu::install(nullptr); }
  std::vector<std::uint32_t*> words_;
  gpu::FakeGpu& install(gpu::FakeOptions o) {
    o.devices = kRanks;
    o.multiprocessors = 16;
    auto* fake = new gpu::FakeGpu(std::move(o));  // never destroyed: pools of the process keep its events
    gpu::install(fake);
    return *fake;
  }
};
class ManyCaptures : public GpuEach {};
class ManyGpus : public GpuEach, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ManyGpus, testing::Values("resident", "copies", "stream"),
                         [](const auto& info) { return info.param; });

struct Seat {
  Floats data;
  Stream stream;
  void make(Context& c, std::size_t count) {
    ASSERT_TRUE(data.make(c, count).ok());
    ASSERT_TRUE(data.fill(1).ok());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    stream = *s;
  }
};

/// One thread enqueues the first operation of each rank after that of the one before, whose kernel spins or
/// whose stream waits by then.
void expect_in_turn(const std::string& path, std::size_t count) {
  const ForcedPath forced(path);
  const bool copies = path == "copies";  // this path reduces nothing
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(kRanks, o);
  std::vector<Seat> seats(kRanks);
  for (std::size_t r = 0; r < kRanks; ++r) {
    ASSERT_EQ(contexts[r].device().index, static_cast<int>(r));
    seats[r].make(contexts[r], count);
  }
  std::vector<Work> works;
  for (std::size_t r = 0; r < kRanks; ++r) {
    const View v = seats[r].data.view();
    if (copies && r > 0) {
      ASSERT_TRUE(seats[r].data.fill(0).ok());
    }
    auto w = copies ? broadcast(contexts[r].world(), v, v, 0, seats[r].stream)
                    : all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seats[r].stream);
    ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
    works.push_back(*w);
    if (r == 0) std::this_thread::sleep_for(20ms);  // its kernel begins to spin
  }
  for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
  for (std::size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(seats[r].data.expect(copies ? 1.0f : static_cast<float>(kRanks)), "");
    EXPECT_EQ(only_ran(contexts[r].world(), path), "");
  }
}

TEST_P(ManyGpus, PeerAccessIsEnabledBeforeTheFirstOperation) {
  auto& fake = install({.harsh = {.peering_waits = true, .patience = kPatience}});
  expect_in_turn(GetParam(), kCount);
  EXPECT_EQ(fake.stalls(), 0);
}

/// Memory of cudaMalloc is accessible to other devices only once peer access is enabled.
TEST_P(ManyGpus, PeerAccessIsEnabledWhereMemoryIsNotShareable) {
  auto& fake = install({.shareable_memory = false,
                        .device_words = false,
                        .harsh = {.peering_waits = true, .patience = kPatience}});
  expect_in_turn(GetParam(), kCount);
  EXPECT_EQ(fake.stalls(), 0);
}

TEST_P(ManyGpus, NoMemoryIsMadeWhileOthersWait) {
  auto& fake = install({.harsh = {.allocation_waits = true, .patience = kPatience}});
  expect_in_turn(GetParam(), GetParam() == std::string("resident") ? kMany : kCount);
  EXPECT_EQ(fake.stalls(), 0);
}

TEST_P(ManyGpus, NoKernelIsLoadedWhileOthersWait) {
  auto& fake = install({.harsh = {.lazy_loading = true, .patience = kPatience}});
  expect_in_turn(GetParam(), kCount);
  EXPECT_EQ(fake.stalls(), 0);
}

/// A rank captures more operations than its arrival records have room for, before any other rank begins.
TEST_F(ManyCaptures, RankThatCapturesFarAheadWaitsForNobody) {
  install({});
  const ForcedPath forced("resident");
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(kRanks, o);
  constexpr int kTimes = 200;
  std::vector<Seat> seats(kRanks);
  std::vector<gpu::Graph> graphs;
  std::vector<gpu::Stream> streams;
  for (std::size_t r = 0; r < kRanks; ++r) {
    Seat& seat = seats[r];
    seat.make(contexts[r], 10);
    const View v = seat.data.view();
    streams.push_back({contexts[r].device().index, seat.stream.cuda_handle()});
    ASSERT_TRUE(gpu::gpu().begin_capture(streams[r]).ok());
    for (int k = 0; k < kTimes; ++k) {
      auto w = all_reduce(contexts[r].world(), v, v, ReduceOp::max, seat.stream);
      ASSERT_TRUE(w.ok()) << "rank " << r << ", " << k << ": " << w.status().message();
    }
    auto graph = gpu::gpu().end_capture(streams[r]);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    graphs.push_back(*graph);
  }
  for (std::size_t r = 0; r < kRanks; ++r) ASSERT_TRUE(seats[r].data.fill(static_cast<float>(r)).ok());
  for (std::size_t r = 0; r < kRanks; ++r) ASSERT_TRUE(gpu::gpu().launch(graphs[r], streams[r]).ok());
  for (std::size_t r = 0; r < kRanks; ++r) {
    ASSERT_TRUE(gpu::gpu().synchronize(streams[r]).ok());
    EXPECT_EQ(seats[r].data.expect(kRanks - 1), "");
    ASSERT_TRUE(gpu::gpu().destroy_graph(graphs[r]).ok());
  }
  // Operations that are not captured follow.
  std::vector<Work> works;
  for (std::size_t r = 0; r < kRanks; ++r) {
    const View v = seats[r].data.view();
    works.push_back(*all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seats[r].stream));
  }
  for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
  EXPECT_EQ(seats[0].data.expect(kRanks * (kRanks - 1)), "");
}

/// One captures an operation that another runs, in either order, or another operation.
TEST_F(ManyCaptures, DisagreementIsFoundAtOnce) {
  install({});
  const ForcedPath forced("resident");
  Watchdog watchdog;
  for (const int captures : {0, 1, 2}) {  // the rank that does; 2: both, of different sizes
    auto contexts = thread_contexts(2);
    std::vector<Seat> seats(2);
    Status last;
    for (std::size_t r = 0; r < 2; ++r) {
      Seat& seat = seats[r];
      seat.make(contexts[r], captures == 2 ? 10 + r : 10);
      const View v = seat.data.view();
      const gpu::Stream on{contexts[r].device().index, seat.stream.cuda_handle()};
      const bool mine = captures == 2 || captures == static_cast<int>(r);
      ASSERT_TRUE(!mine || gpu::gpu().begin_capture(on).ok());
      last = all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seat.stream).status();
      if (mine) (void)gpu::gpu().end_capture(on).ok();
    }
    EXPECT_THAT(last, Fails(Reason::mismatch)) << captures;
  }
}

TEST(GpuContexts, StreamsOfOtherContextsAreRefusedByName) {
  OURO_NEEDS_FAKES();
  gpu::FakeGpu fake;
  gpu::install(&fake);
  const auto foreign = fake.create_foreign_stream(0);
  ASSERT_TRUE(foreign.ok());
  const Status refused = Stream::cuda(foreign->handle, 0).status();
  EXPECT_THAT(refused, Fails(Reason::invalid));
  EXPECT_TRUE(has(refused.message(), "another context")) << refused.message();
  EXPECT_TRUE(Stream::cuda(nullptr, 0).ok());
  gpu::install(nullptr);
}

/// Rank 1 maps other memory than that of rank 0, although its device says that it reaches the other: no rank
/// may choose a path by which GPUs access each other.
TEST(GpuTrials, WrongAccessIsFoundWhenRanksJoin) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  for (const bool wrong : {false, true}) {
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board&) {
      gpu::FakeOptions fakes{.devices = 1, .multiprocessors = 16, .first = rank, .host_devices = 3};
      fakes.misdirected = [&](int device) { return wrong && device == 1; };
      gpu::install(new gpu::FakeGpu(std::move(fakes)));
      InitOptions o = options(rank, 3, id);
      o.gpu = 0;
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      auto why = c->world().explain(Collective::all_reduce, kCount, DType::f32, ReduceOp::sum,
                                    Numerics::inherit, c->device());
      ASSERT_TRUE(why.ok()) << why.status().message();
      EXPECT_TRUE(has(*why, wrong ? "wrongly" : "resident")) << *why;
      Seat seat;
      seat.make(*c, kCount);
      const View v = seat.data.view();
      const Status s = all_reduce(c->world(), v, v);
      EXPECT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(seat.data.expect(3), "");
      EXPECT_EQ(only_ran(c->world(), wrong ? "staged" : "resident"), "");
      const int two[] = {0, 2};  // these access each other correctly
      if (rank != 1) {
        auto g = c->group(two, "two");
        ASSERT_TRUE(g.ok());
        EXPECT_TRUE(all_reduce(*g, v, v).ok());
        EXPECT_EQ(only_ran(*g, "resident"), "");
      }
      ASSERT_TRUE(barrier(c->world()).ok());
    });
    ranks.join();
  }
}

TEST(GpuTrials, PathThatIsForcedIsRefusedWithTheFinding) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const ForcedPath forced("resident");
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board&) {
    gpu::FakeOptions fakes{.devices = 1, .multiprocessors = 16, .first = rank, .host_devices = 2};
    fakes.misdirected = [](int device) { return device == 0; };
    gpu::install(new gpu::FakeGpu(std::move(fakes)));
    InitOptions o = options(rank, 2, id);
    o.gpu = 0;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    Seat seat;
    seat.make(*c, kCount);
    const Status s = all_reduce(c->world(), seat.data.view(), seat.data.view());
    EXPECT_THAT(s, Fails(Reason::unsupported));
    EXPECT_TRUE(has(s.message(), "wrongly, as a trial has shown")) << s.message();
    ASSERT_TRUE(barrier(c->world()).ok());
  });
  ranks.join();
}

/// Remembers the most blocks that a kernel had.
class WidestLaunch final : public gpu::CountingGpu {
 public:
  using CountingGpu::CountingGpu;
  Status launch(const gpu::Kernel& k, gpu::Shape shape, const void* args, gpu::Stream s) override {
    if (k.spins) blocks = std::max(blocks, shape.blocks);
    return CountingGpu::launch(k, shape, args, s);
  }
  using CountingGpu::launch;
  int blocks = 0;
};

/// Ranks that name different limits launch the same number of blocks, the smallest that one has named.
TEST(GpuBlocks, SmallestLimitOfAGroupCountsForAllOfIt) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  struct Limits {
    int of[3], world, two;  // by rank, and what follows for all three and for ranks 0 and 2
  };
  for (const Limits& limits :
       {Limits{{0, 0, 0}, 20, 20}, Limits{{6, 3, 0}, 3, 6}, Limits{{0, 1, 64}, 1, 20}}) {
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board&) {
      gpu::FakeGpu fake({.devices = 1, .multiprocessors = 40, .first = rank, .host_devices = 3});
      auto* const widest = new WidestLaunch(fake);
      gpu::install(widest);
      InitOptions o = options(rank, 3, id);
      o.gpu = 0;
      o.gpu_blocks = limits.of[rank];
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      Seat seat;
      seat.make(*c, 1 << 20);
      const View v = seat.data.view();
      ASSERT_TRUE(all_reduce(c->world(), v, v).ok());
      EXPECT_EQ(seat.data.expect(3), "");
      EXPECT_EQ(only_ran(c->world(), "resident"), "");
      EXPECT_EQ(widest->blocks, limits.world);
      const int two[] = {0, 2};
      if (rank != 1) {
        widest->blocks = 0;
        auto g = c->group(two, "two");
        ASSERT_TRUE(g.ok() && all_reduce(*g, v, v).ok());
        EXPECT_EQ(widest->blocks, limits.two);
        EXPECT_TRUE(g->close().ok());
      }
      ASSERT_TRUE(barrier(c->world()).ok());
      std::_Exit(testing::Test::HasFailure());  // the devices outlive what uses them
    });
    ranks.join();
  }
}

/// A kernel with calls has frames on the stack. A driver that has to enlarge the stack at a launch waits for
/// all work of the device, on which another kernel of this library may spin.
TEST_P(ManyGpus, StackOfAllKernelsIsReservedBeforeTheFirstOperation) {
  auto& fake = install({.local_bytes = [](const gpu::Kernel&) { return std::size_t{3000}; },
                        .harsh = {.stack_waits = true, .patience = kPatience}});
  const ForcedPath forced(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(kRanks);
  for (int device = 0; device < kRanks; ++device) {  // as if another kernel spun there
    auto waits = fake.create_stream(device, 0);
    auto word = fake.alloc_pinned(4);
    ASSERT_TRUE(waits.ok() && word.ok());
    const gpu::MemOp until{gpu::MemOp::Kind::wait_equal, 1, std::memset(*word, 0, 4)};
    ASSERT_TRUE(fake.enqueue({&until, 1}, *waits).ok());
    words_.push_back(static_cast<std::uint32_t*>(*word));
  }
  on_threads(kRanks, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Seat seat;
    seat.make(c, kCount);
    const View v = seat.data.view();
    auto w = GetParam() == std::string("copies") ? broadcast(c.world(), v, v, 0, seat.stream)
                                                 : all_reduce(c.world(), v, v, ReduceOp::sum, seat.stream);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_TRUE(w->wait().ok()) << w->wait().message();
  });
  EXPECT_EQ(fake.stalls(), 0);
  for (std::uint32_t* const word : words_) std::atomic_ref(*word).store(1);
}

}  // namespace
}  // namespace ouro::test
