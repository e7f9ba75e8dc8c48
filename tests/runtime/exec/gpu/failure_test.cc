// Failures on devices: ranks die, disagree or are late, or a device is lost. Every stream must continue, and
// every error must be specific.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/device_memory/deferred_free.h"
#include "runtime/stream/gpu_stream.h"
#include "runtime/stream/host_calls.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using gpu::gpu;

class GpuFailure : public testing::TestWithParam<const char*> {};
class TimedGpuFailure : public GpuFailure {};
INSTANTIATE_TEST_SUITE_P(All, GpuFailure, testing::Values("leader", "resident", "copies", "stream", "staged"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(All, TimedGpuFailure,
                         testing::Values("leader", "resident", "copies", "stream", "staged"),
                         [](const auto& info) { return info.param; });

class TimedGpuReplay : public GpuFailure {};  // what goes through the host is not captured
INSTANTIATE_TEST_SUITE_P(All, TimedGpuReplay, testing::Values("leader", "resident", "copies", "stream"),
                         [](const auto& info) { return info.param; });

constexpr std::size_t kCount = 50'000;

/// A stream, and memory for an in-place all-reduce on it.
struct Bench {
  DeviceArena arena;
  Stream stream;
  Device device;
  Status make(Context& c) {
    device = c.device();
    auto s = Stream::create(device);
    if (!s.ok()) return s.status();
    stream = *s;
    return arena.make(c, 4 * kCount, From::ouro);
  }
  View view(std::size_t count = kCount) const { return View(arena.data(), count, DType::f32, device); }
  /// On the path of copies an all-gather, in which each rank also needs all others.
  Result<Work> reduce(Group& g, std::size_t count = kCount) {
    const char* const path = std::getenv("OURO_GPU_PATH");
    if (path != nullptr && path == std::string_view("copies")) {
      const std::size_t part = std::min(count, kCount / static_cast<std::size_t>(g.size()));
      const CView mine(arena.data() + 4 * part * static_cast<std::size_t>(g.rank()), part, DType::f32,
                       device);
      return all_gather(g, mine, view(part * static_cast<std::size_t>(g.size())), stream);
    }
    return all_reduce(g, view(count), view(count), ReduceOp::max, stream);
  }
};

/// The device is still usable: a kernel of a new group finishes.
void expect_free(Context& c) {
  auto s = Stream::create(c.device());
  ASSERT_TRUE(s.ok());
  const int alone[] = {c.rank()};
  auto g = c.group(alone, "alone");
  ASSERT_TRUE(g.ok());
  Bench b;
  ASSERT_TRUE(b.make(c).ok());
  auto w = b.reduce(*g);
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_TRUE(w->wait(10s).ok()) << w->wait(10s).message();
}

/// Whether the device reaches the end of a stream, whatever failed there.
bool drains(const Stream& s) {
  Event mark;
  mark.record(s);
  return mark.synchronize(5s).ok();
}

TEST_P(TimedGpuFailure, RankKilledInMidCollectiveFailsItOnTheOthers) {
  OURO_NEEDS_GPU();
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_GPU_EACH(GetParam(), Mode::processes, 4);
  const ForcedPath path(GetParam(), Mode::processes);
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(4, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 4, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Bench b;
    ASSERT_TRUE(b.make(*joined).ok());
    ASSERT_TRUE(b.reduce(joined->world())->wait().ok());
    board.stage[rank] = 1;
    Status s;
    std::vector<Work> works;
    while (s.ok()) {
      auto w = b.reduce(joined->world());  // several are in flight
      s = w.ok() ? (works.size() % 8 == 7 ? w->wait() : Status()) : w.status();
      if (w.ok()) works.push_back(*w);
    }
    board.heard_ns[rank] = now_ns();
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    EXPECT_EQ(s.failure()->pid, board.pid[2]) << s.message();
    EXPECT_THAT(b.reduce(joined->world()).status(), Fails(Reason::peer_dead, 2));  // the error is sticky
    EXPECT_TRUE(drains(b.stream)) << "a stream waits on";
    expect_free(*joined);
    // The survivors continue.
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    EXPECT_EQ(rest->size(), 3);
    auto w = b.reduce(*rest);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_TRUE(w->wait().ok()) << w->wait().message();
    for (Group* g : {&joined->world(), &*rest}) EXPECT_EQ(only_ran(*g, GetParam()), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({2});
  ranks.join({2});
  for (int r : {0, 1, 3})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
}

/// A replay has no deadline and no Work, but it does not hold its stream up for good.
TEST_P(TimedGpuReplay, RankKilledInMidReplayDoesNotBlockTheStream) {
  OURO_NEEDS_GPU();
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_GPU_EACH(GetParam(), Mode::processes, 3);
  const ForcedPath path(GetParam(), Mode::processes);
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Bench b;
    ASSERT_TRUE(b.make(*joined).ok());
    const auto made = gpu().create_stream(b.device.index, 0);
    ASSERT_TRUE(made.ok());
    b.stream = *Stream::cuda(made->handle, made->device);
    ASSERT_TRUE(b.reduce(joined->world())->wait().ok());
    ASSERT_TRUE(gpu().begin_capture(*made).ok());
    ASSERT_TRUE(b.reduce(joined->world()).ok());
    const auto graph = gpu().end_capture(*made);
    ASSERT_TRUE(graph.ok());
    for (bool told = false;; told = true) {
      ASSERT_TRUE(gpu().launch(*graph, *made).ok());
      Event mark;
      mark.record(b.stream);
      ASSERT_TRUE(mark.synchronize(kHang).ok()) << "the replay waits on";
      if (!told) board.stage[rank] = 1;
      const Status s = joined->world().status();
      if (s.ok()) continue;
      board.heard_ns[rank] = now_ns();
      EXPECT_THAT(s, Fails(Reason::peer_dead, 1));
      break;
    }
    for (int k = 0; k < 3; ++k) ASSERT_TRUE(gpu().launch(*graph, *made).ok());  // nor do later ones
    EXPECT_TRUE(drains(b.stream)) << "a stream waits on";
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({1});
  ranks.join({1});
  for (int r : {0, 2})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
}

TEST_P(GpuFailure, DisagreementNamesBothSides) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  on_threads(3, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Bench b;
    ASSERT_TRUE(b.make(c).ok());
    auto w = b.reduce(c.world(), rank == 1 ? 100 : 99);
    Status s = w.ok() ? w->wait() : w.status();
    EXPECT_THAT(s, Fails(Reason::mismatch));
    EXPECT_TRUE(has(s.message(), "count 100") && has(s.message(), "count 99")) << s.message();
    EXPECT_EQ(only_ran(c.world(), GetParam()), "");
    EXPECT_TRUE(drains(b.stream)) << "a stream waits on";
    expect_free(c);
  });
}

TEST_P(GpuFailure, MissingRankIsNamedAtTheDeadline) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  InitOptions o;
  o.deadline = Milliseconds(300);
  auto contexts = thread_contexts(3, o);
  on_threads(3, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    if (rank == 1) return;
    Bench b;
    ASSERT_TRUE(b.make(c).ok());
    auto w = b.reduce(c.world());
    ASSERT_TRUE(w.ok()) << w.status().message();
    const Status s = w->wait();
    EXPECT_THAT(s, Fails(Reason::deadline));
    EXPECT_TRUE(has(s.message(), "ranks {1} have not entered")) << s.message();
    EXPECT_EQ(only_ran(c.world(), GetParam()), "");
    EXPECT_TRUE(drains(b.stream)) << "a stream waits on";
    EXPECT_THAT(b.stream.synchronize(), Fails(Reason::deadline));  // the stream keeps the error
    EXPECT_TRUE(b.stream.synchronize().ok());
  });
}

TEST_P(GpuFailure, AbortAndDestructionEndPendingOperations) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  for (bool abort : {true, false})
    on_threads(2, [&](int rank) {
      Context& c = contexts[static_cast<std::size_t>(rank)];
      const int both[] = {0, 1};
      auto made = c.group(both, abort ? "a" : "b");
      ASSERT_TRUE(made.ok());
      std::optional<Group> g(std::move(*made));
      Bench b;
      ASSERT_TRUE(b.make(c).ok());
      ASSERT_TRUE(b.reduce(*g)->wait().ok());
      ASSERT_TRUE(barrier(c.world()).ok());
      if (rank == 1) {  // it never enters the operation
        std::this_thread::sleep_for(50ms);
        if (abort) g->abort("enough");
        ASSERT_TRUE(barrier(c.world()).ok());
        return;
      }
      auto w = b.reduce(*g);
      ASSERT_TRUE(w.ok()) << w.status().message();
      EXPECT_EQ(only_ran(*g, GetParam()), "");
      if (!abort) g.reset();
      EXPECT_THAT(w->wait(), Fails(Reason::revoked));
      EXPECT_TRUE(drains(b.stream)) << "a stream waits on";
      ASSERT_TRUE(barrier(c.world()).ok());
    });
}

/// Faults that only a fake device can be made to have.
class FakeFaults : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    fake_ = std::make_unique<gpu::FakeGpu>(gpu::FakeOptions{.multiprocessors = 16});
    gpu::install(fake_.get());
  }
  void TearDown() override { gpu::install(nullptr); }
  std::unique_ptr<gpu::FakeGpu> fake_;
};

class FakeLoss : public FakeFaults, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, FakeLoss, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(FakeLoss, LostDeviceIsNamed) {
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Bench b;
    ASSERT_TRUE(b.make(c).ok());
    ASSERT_TRUE(b.reduce(c.world())->wait().ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    EXPECT_EQ(only_ran(c.world(), GetParam()), "");
    if (rank == 0) fake_->lose(0);
    ASSERT_TRUE(barrier(c.world()).ok());
    auto w = b.reduce(c.world());
    const Status s = w.ok() ? w->wait() : w.status();
    EXPECT_THAT(s, Fails(Reason::device));
  });
}

/// The group fails after the operation has started and before its end is marked in the stream: the returned
/// work must end when the device has finished, not before, and with the group's error.
TEST_F(FakeFaults, AnOperationEndsWithItsStreamThoughItsGroupFailsMeanwhile) {
  // The mark is a write of a word, which takes long to enqueue.
  std::atomic<bool> slow{false};
  gpu::FakeOptions options{.multiprocessors = 16};
  options.on_word = [&](const gpu::MemOp&, int, int, bool) {
    if (slow) std::this_thread::sleep_for(400ms);
  };
  fake_ = std::make_unique<gpu::FakeGpu>(options);
  gpu::install(fake_.get());
  Watchdog watchdog;
  auto contexts = thread_contexts(1);
  Context& c = contexts[0];
  const int alone[] = {0};
  auto g = c.group(alone, "alone");
  ASSERT_TRUE(g.ok());
  Bench b;
  ASSERT_TRUE(b.make(c).ok());
  DeviceArena result;
  ASSERT_TRUE(result.make(c, 4 * kCount, From::ouro).ok());
  const View out(result.data(), kCount, DType::f32, c.device());
  ASSERT_TRUE(b.arena.write(std::vector<std::byte>(4 * kCount, std::byte{1})).ok());
  // Creates what is needed on first use.
  ASSERT_TRUE(all_reduce(*g, b.view(), out, ReduceOp::sum, b.stream)->wait().ok());
  ASSERT_TRUE(b.arena.write(std::vector<std::byte>(4 * kCount, std::byte{2})).ok());
  slow = true;
  fake_->delay(gpu::FakeOp::kernel, 2s);
  std::thread other([&] {
    std::this_thread::sleep_for(150ms);
    g->abort("between the kernel and its mark");
  });
  auto work = all_reduce(*g, b.view(), out, ReduceOp::sum, b.stream);
  other.join();
  slow = false;
  ASSERT_TRUE(work.ok()) << work.status().message();
  EXPECT_THAT(work->wait(), Fails(Reason::revoked));
  auto at_its_end = result.read();
  EXPECT_TRUE(drains(b.stream));
  auto afterwards = result.read();
  ASSERT_TRUE(at_its_end.ok() && afterwards.ok());
  EXPECT_EQ(*at_its_end, *afterwards) << "the device went on after the operation had ended";
}

/// When a device is lost, everything in its streams is dropped, including the part that the host was to do:
/// the operation ends, and so does its group.
TEST_P(FakeLoss, EndsWhatIsInItsStreams) {
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    const int both[] = {0, 1};
    auto g = c.group(both, "lost");
    ASSERT_TRUE(g.ok());
    Bench b;
    ASSERT_TRUE(b.make(c).ok());
    ASSERT_TRUE(b.reduce(*g)->wait().ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    if (rank == 0)
      for (const auto op : {gpu::FakeOp::copy, gpu::FakeOp::kernel, gpu::FakeOp::mem_op})
        fake_->delay(op, 200ms);
    ASSERT_TRUE(barrier(c.world()).ok());
    std::vector<Work> works;
    for (int k = 0; k < 3; ++k)
      if (auto w = b.reduce(*g); w.ok()) works.push_back(*w);
    std::vector<float> here(10);  // memory of the host, ordered by the device's stream
    if (auto w = all_reduce(*g, std::span(here), std::span(here), ReduceOp::sum, b.stream); w.ok())
      works.push_back(*w);
    EXPECT_EQ(works.size(), 4U);
    ASSERT_TRUE(barrier(c.world()).ok());
    if (rank == 0) fake_->lose(0);
    for (const Work& w : works) EXPECT_THAT(w.wait(kHang), Fails(Reason::device));
    EXPECT_TRUE(eventually([&] { return !g->status().ok(); })) << "others would wait for this rank";
    EXPECT_TRUE(g->close().ok());
    EXPECT_TRUE(exact_all_reduce(c.world()).ok());
  });
  contexts.clear();
  EXPECT_TRUE(eventually([&] { return rt::calls_kept(0) == 0 && fake_->live().streams == 0; }))
      << rt::calls_kept(0) << " functions, " << fake_->live().streams << " streams";
}

TEST_F(FakeFaults, SlowAndUnsteadyDevicesChangeNothing) {
  Watchdog watchdog(60s);
  fake_->jitter(7);
  fake_->delay(gpu::FakeOp::kernel, std::chrono::microseconds(300));
  for (const char* name : {"leader", "resident", "stream", "staged"}) {
    const ForcedPath path(name);
    auto contexts = thread_contexts(3);
    on_threads(3, [&](int rank) {
      Context& c = contexts[static_cast<std::size_t>(rank)];
      DeviceArena arena;
      ASSERT_TRUE(arena.make(c, 4000, From::ouro).ok());
      auto s = Stream::create(c.device());
      ASSERT_TRUE(s.ok());
      std::vector<std::byte> bytes(4000);
      for (std::int32_t i = 0; i < 1000; ++i) {
        const std::int32_t v = i + rank;
        std::memcpy(&bytes[4 * static_cast<std::size_t>(i)], &v, 4);
      }
      ASSERT_TRUE(arena.write(bytes).ok());
      const View v(arena.data(), 1000, DType::i32, c.device());
      for (int k = 0; k < 5; ++k) {
        auto w = all_reduce(c.world(), v, v, ReduceOp::sum, *s);
        ASSERT_TRUE(w.ok()) << w.status().message();
      }
      ASSERT_TRUE(s->synchronize().ok());
      auto after = arena.read();
      ASSERT_TRUE(after.ok());
      for (std::int32_t i = 0; i < 1000; ++i) {
        std::int32_t x;
        std::memcpy(&x, &(*after)[4 * static_cast<std::size_t>(i)], 4);
        ASSERT_EQ(x, (3 * i + 3) * 81) << name;
      }
      EXPECT_EQ(only_ran(c.world(), name), "");
      ASSERT_TRUE(barrier(c.world()).ok());
    });
  }
}

TEST_F(FakeFaults, AllocationFailureIsReportedAndRecoverable) {
  Watchdog watchdog;
  auto contexts = thread_contexts(1);
  fake_->fail_next(gpu::FakeOp::alloc, Reason::resource);
  EXPECT_THAT(contexts[0].alloc(1 << 20, contexts[0].device()).status(), Fails(Reason::resource));
  EXPECT_TRUE(contexts[0].alloc(1 << 20, contexts[0].device()).ok());
  EXPECT_THAT(contexts[0].alloc(std::size_t{1} << 40, contexts[0].device()).status(),
              Fails(Reason::resource));
}

/// Nothing that a group or a context allocated remains.
TEST_F(FakeFaults, NothingLeaks) {
  Watchdog watchdog;
  for (const char* name : {"leader", "resident", "stream", "staged"}) {
    const ForcedPath path(name);
    gpu::FakeLive first, later;
    for (gpu::FakeLive* live : {&first, &later}) {
      for (int turn = 0; turn < 3; ++turn) {
        auto contexts = thread_contexts(3);
        on_threads(3, [&](int rank) {
          Context& c = contexts[static_cast<std::size_t>(rank)];
          Bench b;
          ASSERT_TRUE(b.make(c).ok());
          for (int k = 0; k < 4; ++k) ASSERT_TRUE(b.reduce(c.world()).ok());
          ASSERT_TRUE(b.stream.synchronize().ok());
          EXPECT_EQ(only_ran(c.world(), name), "");
          ASSERT_TRUE(barrier(c.world()).ok());
          ASSERT_TRUE(c.close().ok());
        });
      }
      // The thread that waits for the last mark of a stream may be the last to release the stream.
      if (live == &later) (void)eventually([&] { return fake_->live().streams <= first.streams; });
      // The thread that ends an operation may be late too, and resources are released only after it.
      (void)eventually([&] {
        rt::free_if_idle();
        return fake_->live().registrations == 0;
      });
      *live = fake_->live();
    }
    EXPECT_EQ(first.allocations, later.allocations) << name;
    EXPECT_LE(later.streams, first.streams) << name;
    EXPECT_EQ(first.imports, later.imports) << name;
    EXPECT_EQ(first.registrations, 0) << name;
    EXPECT_LE(later.events, first.events + 4) << name;  // events are pooled
  }
}

}  // namespace
}  // namespace ouro::test
