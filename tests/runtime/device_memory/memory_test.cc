// How ranks that are processes reach each other's device memory, depending on what the device can share:
// descriptors, legacy handles, stand-ins, or the host. On fake devices with configured capabilities.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/device_memory/deferred_free.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

struct Kind {
  const char* name;
  gpu::FakeOptions options;
  bool device_each = false;  ///< rank r has GPU r
  const char* expected;      ///< prefix of the result of explain()
};
std::ostream& operator<<(std::ostream& os, const Kind& k) { return os << k.name; }

constexpr std::size_t kCount = 3001;

/// An all-reduce of ones, and a gather of ranks, in place and not, with memory freed and
/// allocated in between.
void exchange(Context& c, From from) {
  Group& g = c.world();
  for (int turn = 0; turn < 3; ++turn) {
    DeviceArena in, out;
    ASSERT_TRUE(in.make(c, 4 * kCount, from).ok());
    ASSERT_TRUE(out.make(c, 4 * kCount * 3, from).ok());
    std::vector<std::byte> bytes(4 * kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::int32_t v = g.rank() + turn;
      std::memcpy(&bytes[4 * i], &v, 4);
    }
    ASSERT_TRUE(in.write(bytes).ok());
    const View mine(in.data(), kCount, DType::i32, c.device());
    const View all(out.data(), 3 * kCount, DType::i32, c.device());
    Status s = all_gather(g, mine, all);
    ASSERT_TRUE(s.ok()) << s.message();
    s = all_reduce(g, mine, mine);
    ASSERT_TRUE(s.ok()) << s.message();
    auto sums = in.read(), ranks = out.read();
    ASSERT_TRUE(sums.ok() && ranks.ok());
    for (std::size_t i = 0; i < 3 * kCount; ++i) {
      std::int32_t sum, rank;
      std::memcpy(&rank, &(*ranks)[4 * i], 4);
      ASSERT_EQ(rank, static_cast<std::int32_t>(i / kCount) + turn) << "element " << i << " turn " << turn;
      if (i >= kCount) continue;
      std::memcpy(&sum, &(*sums)[4 * i], 4);
      ASSERT_EQ(sum, 3 + 3 * turn) << "element " << i << " turn " << turn;
    }
    ASSERT_TRUE(barrier(g).ok());
  }
}

/// Runs ranks as processes, each with a fake device with these options.
void on_fakes(int n, const gpu::FakeOptions& fake, const std::function<void(Context&, Board&)>& run) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(n, [&](int rank, Board& board) {
    gpu::install(new gpu::FakeGpu(fake));
    auto c = Context::create(options(rank, n, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    run(*c, board);
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

class Sharing : public testing::TestWithParam<Kind> {};

TEST_P(Sharing, ProcessesReachEachOther) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  const Kind& kind = GetParam();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board&) {
    gpu::install(new gpu::FakeGpu(kind.options));
    InitOptions o = options(rank, 3, id);
    if (kind.device_each) o.gpu = rank;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    auto why = c->world().explain(Collective::all_reduce, kCount, DType::i32, ReduceOp::sum,
                                  Numerics::inherit, c->device());
    ASSERT_TRUE(why.ok()) << why.status().message();
    EXPECT_EQ(why->rfind(kind.expected, 0), 0u) << *why;
    exchange(*c, From::ouro);
    exchange(*c, From::driver);
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

const Kind kKinds[] = {
    {"descriptors", {.devices = 1}, false, "leader"},
    {"legacy_handles", {.devices = 1, .shareable_memory = false}, false, "leader"},
    {"stand_ins", {.devices = 1, .ipc = false}, false, "leader"},
    {"devices_that_reach", {.devices = 3, .multiprocessors = 16}, true, "resident"},
    {"devices_with_legacy_handles",
     {.devices = 3, .multiprocessors = 16, .shareable_memory = false},
     true,
     "resident"},
    {"few_multiprocessors", {.devices = 3, .multiprocessors = 1}, true, "stream-ordered"},
    {"devices_apart", {.devices = 3, .peer = [](int, int) { return false; }}, true, "staged"},
};
INSTANTIATE_TEST_SUITE_P(All, Sharing, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

/// Each process sees only one GPU, as under Slurm and Ray: the others are mapped nevertheless.
TEST(Sharing, GpusInvisibleToAProcessAreMapped) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  for (const bool shareable : {true, false}) {
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board&) {
      gpu::install(new gpu::FakeGpu(
          {.multiprocessors = 16, .shareable_memory = shareable, .first = rank, .host_devices = 3}));
      auto c = Context::create(options(rank, 3, id));
      ASSERT_TRUE(c.ok()) << c.status().message();
      exchange(*c, From::ouro);
      exchange(*c, From::driver);
      EXPECT_EQ(only_ran(c->world(), "resident"), "");
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
}

TEST(Sharing, UnshareableMemoryIsRefusedWithoutAStickyError) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  on_fakes(2, {.shareable_memory = false, .ipc = false}, [](Context& c, Board&) {
    DeviceArena arena;
    ASSERT_TRUE(arena.make(c, 400, From::driver).ok());
    const View v(arena.data(), 100, DType::f32, c.device());
    const Status s = all_reduce(c.world(), v, v);
    EXPECT_THAT(s, Fails(Reason::unsupported));
    EXPECT_TRUE(has(s.message(), "cannot be shared between processes")) << s.message();
    EXPECT_TRUE(c.world().status().ok());  // the error is not sticky
    EXPECT_TRUE(barrier(c.world()).ok());
  });
}

/// Two ranks that are processes on one GPU. Rank 0 arrives last, so it leads, and maps the memory of rank 1;
/// its device unmaps as soon as it has no work.
class Unmapping {
 public:
  Unmapping(int rank, Board& board, const UniqueId& id) : rank_(rank), board_(board) {
    fake_ = new gpu::FakeGpu({.harsh = {.unmapping_waits = rank == 0, .patience = 1s}});
    gpu::install(fake_);
    auto c = Context::create(options(rank, 2, id));
    EXPECT_TRUE(c.ok()) << c.status().message();
    context_.emplace(*std::move(c));
  }
  ~Unmapping() { EXPECT_TRUE(context_->close().ok()); }
  Context& context() { return *context_; }
  gpu::FakeGpu& fake() { return *fake_; }
  /// Runs f on both ranks, on rank 0 after rank 1.
  void in_turn(const std::function<void()>& f) {
    if (rank_ == 0) {
      EXPECT_TRUE(eventually([&] { return board_.stage[1] > turn_; }));
    }
    f();
    ++turn_;
    board_.stage[rank_] = turn_;
    if (rank_ == 1) {
      EXPECT_TRUE(eventually([&] { return board_.stage[0] >= turn_; }));
    }
  }
  void reduce(Group& g, Floats& on, const Stream& s) {
    in_turn([&] {
      auto w = all_reduce(g, on.view(), on.view(), ReduceOp::sum, s);
      EXPECT_TRUE(w.ok()) << w.status().message();
    });
  }

 private:
  const int rank_;
  Board& board_;
  int turn_ = 0;
  gpu::FakeGpu* fake_;
  std::optional<Context> context_;
};

TEST(Unmapping, SparesMemoryThatAGraphUses) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    Unmapping u(rank, board, id);
    Context& c = u.context();
    auto made = gpu::gpu().create_stream(c.device().index, 0);
    ASSERT_TRUE(made.ok());
    auto s = Stream::cuda(made->handle, made->device);
    ASSERT_TRUE(s.ok());
    Floats captured, stays;
    std::optional<Floats> goes(std::in_place);
    for (Floats* f : {&captured, &stays, &*goes}) ASSERT_TRUE(f->make(c, kCount).ok() && f->fill(1).ok());
    u.reduce(c.world(), *goes, *s);
    ASSERT_TRUE(s->synchronize().ok());
    ASSERT_TRUE(gpu::gpu().begin_capture(*made).ok());
    u.reduce(c.world(), captured, *s);
    auto graph = gpu::gpu().end_capture(*made);
    ASSERT_TRUE(graph.ok());
    if (rank == 1) goes.reset();
    u.reduce(c.world(), stays, *s);  // rank 0 learns of it, and again when nothing is on the device
    ASSERT_TRUE(s->synchronize().ok());
    u.reduce(c.world(), stays, *s);
    ASSERT_TRUE(s->synchronize().ok());
    ASSERT_TRUE(gpu::gpu().launch(*graph, *made).ok());
    ASSERT_TRUE(s->synchronize().ok());
    EXPECT_EQ(captured.expect(2), "");
    EXPECT_EQ(stays.expect(4), "");
    EXPECT_TRUE(gpu::gpu().destroy_graph(*graph).ok());
    EXPECT_EQ(only_ran(c.world(), "leader"), "");
  });
  ranks.join();
}

TEST(Unmapping, IsDeferredWithoutBlockingUntilNoOperationRuns) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    Unmapping u(rank, board, id);
    Context& c = u.context();
    const int both[] = {0, 1};
    auto other = c.group(both, "other");
    auto s = Stream::create(c.device()), t = Stream::create(c.device());
    ASSERT_TRUE(other.ok() && s.ok() && t.ok());
    Floats held, stays;
    std::optional<Floats> goes(std::in_place);
    for (Floats* f : {&held, &stays, &*goes}) ASSERT_TRUE(f->make(c, kCount).ok() && f->fill(1).ok());
    u.reduce(c.world(), *goes, *s);
    u.reduce(*other, stays, *t);
    ASSERT_TRUE(s->synchronize().ok() && t->synchronize().ok());
    const int mapped = u.fake().live().imports;
    std::atomic<bool> go{false};
    if (rank == 1)  // holds up the group's operation of this rank
      (void)s->run(
          [&] { return eventually([&] { return go.load(); }) ? Status() : invalid("nobody said go"); });
    u.reduce(c.world(), held, *s);
    // Rank 0 learns that memory has been freed while the operation before is in its stream.
    if (rank == 1) goes.reset();
    u.reduce(*other, stays, *t);
    EXPECT_TRUE(t->synchronize().ok());
    EXPECT_EQ(u.fake().stalls(), 0);
    go = true;
    ASSERT_TRUE(s->synchronize().ok());
    EXPECT_EQ(held.expect(2), "");
    EXPECT_EQ(stays.expect(4), "");
    EXPECT_TRUE(eventually([&] {
      rt::free_if_idle();
      return u.fake().live().imports <= mapped;  // freed memory is unmapped, and new memory is mapped
    }));
    EXPECT_EQ(u.fake().stalls(), 0);
  });
  ranks.join();
}

/// Freeing memory that others have mapped is undefined in CUDA, and a user's cudaFree is not noticed in
/// advance. So resident kernels use pointers only to memory that this library has allocated.
TEST(Unmapping, ResidentKernelsMapOnlyMemoryOfTheLibrary) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  on_fakes(2, {.devices = 2, .multiprocessors = 16}, [](Context& c, Board&) {
    auto& fake = static_cast<gpu::FakeGpu&>(gpu::gpu());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    for (const From from : {From::driver, From::ouro}) {
      Floats large;
      ASSERT_TRUE(large.make(c, 40'000, from).ok() && large.fill(1).ok());
      ASSERT_TRUE(all_reduce(c.world(), large.view(), large.view(), ReduceOp::max, *s)->wait().ok());
      const int mapped = fake.live().imports;
      const std::uint64_t named = c.world().impl()->gpu_named();
      for (int k = 0; k < 4; ++k)
        ASSERT_TRUE(all_reduce(c.world(), large.view(), large.view(), ReduceOp::max, *s)->wait().ok());
      EXPECT_EQ(c.world().impl()->gpu_named() > named, from == From::ouro) << name(from);
      if (from == From::driver) {
        EXPECT_EQ(fake.live().imports, mapped);
      }
      ASSERT_TRUE(barrier(c.world()).ok());
    }
    EXPECT_EQ(only_ran(c.world(), "resident"), "");
  });
}

/// The leader's path does map a user's memory: a rank that has freed it says so within a few calls.
TEST(Unmapping, UserFreedMemoryIsUnmappedWithinAFewCalls) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    Unmapping u(rank, board, id);
    Context& c = u.context();
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    Floats stays;
    std::optional<Floats> goes(std::in_place);
    ASSERT_TRUE(stays.make(c, kCount, From::driver).ok() && stays.fill(1).ok());
    ASSERT_TRUE(goes->make(c, kCount, From::driver).ok() && goes->fill(1).ok());
    u.reduce(c.world(), stays, *s);
    ASSERT_TRUE(s->synchronize().ok());
    const int mapped = u.fake().live().imports;
    u.reduce(c.world(), *goes, *s);
    ASSERT_TRUE(s->synchronize().ok());
    if (rank == 0) {
      EXPECT_GT(u.fake().live().imports, mapped);
    }
    if (rank == 1) goes.reset();
    for (int k = 0; k < 10; ++k) {
      u.reduce(c.world(), stays, *s);
      ASSERT_TRUE(s->synchronize().ok());
    }
    if (rank == 0) {  // the other one maps what this rank has not freed
      EXPECT_TRUE(eventually([&] {
        rt::free_if_idle();
        return u.fake().live().imports <= mapped;
      }));
    }
    EXPECT_EQ(only_ran(c.world(), "leader"), "");
    ASSERT_TRUE(barrier(c.world()).ok());
  });
  ranks.join();
}

/// The rank that arrives last leads, and maps the stand-ins that the others had for that operation, not the
/// ones that they have allocated since.
TEST(StandIns, OutgrownOnesStayForLateRanks) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  on_fakes(2, {.ipc = false}, [](Context& c, Board& board) {
    Floats all;
    ASSERT_TRUE(all.make(c, kCount, From::driver).ok() && all.fill(1).ok());
    View few = all.view();
    few.count = 10;
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    if (c.rank() == 1) {
      EXPECT_TRUE(eventually([&] { return board.stage[0] == 1; }));
    }
    auto first = all_reduce(c.world(), few, few, ReduceOp::max, *s);
    ASSERT_TRUE(first.ok()) << first.status().message();
    auto second = all_reduce(c.world(), all.view(), all.view(), ReduceOp::max, *s);
    ASSERT_TRUE(second.ok()) << second.status().message();
    if (c.rank() == 0) board.stage[0] = 1;
    EXPECT_TRUE(first->wait().ok()) << first->wait().message();
    EXPECT_TRUE(second->wait().ok()) << second->wait().message();
    EXPECT_EQ(all.expect(1), "");
  });
}

/// A group fails while a rank waits: the wait ends, and the copy out of a stand-in behind it must leave the
/// buffer unchanged, because its owner may have freed it by then.
TEST(StandIns, AreNotCopiedFromAfterAFailure) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  on_fakes(2, {.ipc = false}, [](Context& c, Board& board) {
    const int both[] = {0, 1};
    auto g = c.group(both, "fails");
    ASSERT_TRUE(g.ok());
    Floats in, out;
    ASSERT_TRUE(in.make(c, kCount, From::driver).ok() && out.make(c, kCount, From::driver).ok());
    ASSERT_TRUE(in.fill(1).ok() && out.fill(0).ok());
    ASSERT_TRUE(all_reduce(*g, in.view(), out.view()).ok());
    EXPECT_EQ(out.expect(2), "");
    ASSERT_TRUE(out.fill(7).ok());
    if (c.rank() == 0) {
      auto s = Stream::create(c.device());
      auto w = all_reduce(*g, in.view(), out.view(), ReduceOp::sum, *s);
      ASSERT_TRUE(w.ok()) << w.status().message();
      board.stage[0] = 1;
      EXPECT_THAT(w->wait(), Fails(Reason::revoked));
      EXPECT_FALSE(s->synchronize().ok());
      EXPECT_EQ(out.expect(7), "");
    } else {
      EXPECT_TRUE(eventually([&] { return board.stage[0] == 1; }));
      g->abort("enough");
    }
    EXPECT_TRUE(barrier(c.world()).ok());
  });
}

}  // namespace
}  // namespace ouro::test
