// The end of registrations: in flight, in graphs, too late. Ranks are processes with a fake GPU each.
#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "runtime/device_memory/deferred_free.h"
#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Two ranks that are processes, with a GPU each, which unmap at once when they have no work.
class Released : public testing::Test {
 protected:
  void SetUp() override { OURO_NEEDS_FAKES(); }
  void on_ranks(const std::function<void(Context&, Board&)>& run, std::size_t memory = std::size_t{1} << 30) {
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(2, [&](int rank, Board& board) {
      gpu::install(new gpu::FakeGpu({.devices = 2,
                                     .memory_bytes = memory,
                                     .multiprocessors = 16,
                                     .harsh = {.unmapping_waits = true, .patience = 3s}}));
      auto c = Context::create(options(rank, 2, id));
      ASSERT_TRUE(c.ok()) << c.status().message();
      run(*c, board);
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
};

/// Calls f while the process cannot open a descriptor.
Status without_descriptors(const std::function<Status()>& f) {
  rlimit before{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Status s = f();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  return s;
}

/// The other rank's kernel waits for this one when the memory is released. The memory stays mapped there
/// until the kernel has ended, and is then unmapped without a call of that rank.
TEST_F(Released, MemoryStaysMappedUntilTheOperationEnds) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board& board) {
    Own memory;
    ASSERT_TRUE(memory.make(c, 4 * kCount).ok());
    auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c.world(), c, memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    const int mapped = fake().live().imports;
    ASSERT_TRUE(memory.fill(0, kCount, 1).ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    const View v(memory.data(), kCount, DType::f32, c.device());
    std::optional<Result<Work>> w;
    if (c.world().rank() == 0) {
      w.emplace(all_reduce(c.world(), v, v, ReduceOp::sum, *s));
      board.stage[0] = 1;
      ASSERT_TRUE(w->ok() && (*w)->wait().ok());
      EXPECT_TRUE(eventually([&] { return board.stage[1] == 1; }));
      EXPECT_LT(fake().live().imports, mapped);
    } else {
      EXPECT_TRUE(eventually([&] { return board.stage[0] == 1; }));
      EXPECT_THAT(r->release(0ms), Fails(Reason::deadline, 0));
      const Status unknown = without_descriptors([&] { return r->release(0ms); });
      EXPECT_THAT(unknown, Fails(Reason::deadline, 0));
      EXPECT_TRUE(has(unknown.message(), "may still have")) << unknown.message();
      EXPECT_TRUE(has(unknown.message(), "descriptor")) << unknown.message();
      const Status open = r->release(50ms);
      EXPECT_THAT(open, Fails(Reason::deadline, 0));
      EXPECT_TRUE(has(open.message(), "has not ended")) << open.message();
      w.emplace(all_reduce(c.world(), v, v, ReduceOp::sum, *s));
      ASSERT_TRUE(w->ok() && (*w)->wait().ok());
      const Status closed = r->release(5s);
      EXPECT_TRUE(closed.ok()) << closed.message();
      EXPECT_EQ(memory.expect(0, kCount, 2), "");
      memory.free();
      EXPECT_EQ(fake().freed_in_use(), 0);
      board.stage[1] = 1;
    }
    EXPECT_EQ(fake().stalls(), 0);
    ASSERT_TRUE(barrier(c.world()).ok());
    if (c.world().rank() == 0) {
      EXPECT_TRUE(r->release(5s).ok());
    }
  });
}

/// The owner releases memory that it has named in an operation which the other rank has not reached.
/// The memory stays mapped there, whatever that rank does in between, until the operation has ended.
/// The same holds if the owner has unmapped another part of the memory by then, which the library
/// detects at the release.
TEST_F(Released, MemoryStaysMappedUntilALateRankHasFinished) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board& board) {
    enum Kind { legacy, in_chunks, without_its_first_chunk };
    for (const Kind kind : {legacy, in_chunks, without_its_first_chunk}) {
      const bool chunks = kind != legacy;
      Own memory, other;
      const std::size_t at = kind == without_its_first_chunk ? kUnit : 0;
      if (kind == legacy) {
        ASSERT_TRUE(memory.make(c, 4 * kCount).ok());
      } else if (kind == in_chunks) {
        ASSERT_TRUE(memory.make_chunks(c, {2, 2}, 4).ok());
      } else {
        ASSERT_TRUE(memory.make_chunks(c, {1, 4}, 5).ok());
      }
      ASSERT_TRUE(other.make(c, 4 * kCount).ok());
      auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
      ASSERT_TRUE(r.ok()) << r.status().message();
      bool named = false;
      ASSERT_EQ(settle(c.world(), c, memory, at, kCount, &named), "");
      EXPECT_TRUE(named);
      const int both[] = {0, 1};
      auto beside = c.group(both, "beside");
      ASSERT_TRUE(beside.ok());
      ASSERT_EQ(settle(*beside, c, memory, at, kCount, &named), "");  // it has mapped it, too
      const int mapped = fake().live().imports;
      ASSERT_TRUE(memory.fill(at, kCount, 1).ok() && other.fill(0, kCount, 1).ok());
      ASSERT_TRUE(barrier(c.world()).ok());
      auto s = Stream::create(c.device()), t = Stream::create(c.device());
      ASSERT_TRUE(s.ok() && t.ok());
      const View v(memory.data() + at, kCount, DType::f32, c.device());
      const View w(other.data(), kCount, DType::f32, c.device());
      const int turn = kind + 1;
      const std::uint64_t names = c.world().impl()->gpu_named();
      if (c.world().rank() == 1) {
        if (kind == without_its_first_chunk) {
          ASSERT_TRUE(memory.unmap_first().ok());
        }
        auto late = all_reduce(c.world(), v, v, ReduceOp::sum, *s);
        ASSERT_TRUE(late.ok()) << late.status().message();
        EXPECT_EQ(r->release(chunks ? 0ms : 30ms).ok(), chunks);
        board.stage[1] = turn;
        for (int k = 0; k < 3; ++k) ASSERT_TRUE(all_reduce(*beside, w, w, ReduceOp::max, *t)->wait().ok());
        ASSERT_TRUE(late->wait().ok()) << late->wait().message();
      } else {
        EXPECT_TRUE(eventually([&] { return board.stage[1] == turn; }));
        for (int k = 0; k < 3; ++k) ASSERT_TRUE(all_reduce(*beside, w, w, ReduceOp::max, *t)->wait().ok());
        rt::free_if_idle();
        EXPECT_GE(fake().live().imports, mapped);
        auto late = all_reduce(c.world(), v, v, ReduceOp::sum, *s);
        ASSERT_TRUE(late.ok() && late->wait().ok()) << late.status().message();
      }
      EXPECT_GT(c.world().impl()->gpu_named(), names);
      EXPECT_EQ(memory.expect(at, kCount, 2), "");
      ASSERT_TRUE(barrier(c.world()).ok());
      const Status released = r->release(5s);
      EXPECT_TRUE(released.ok()) << released.message();
      ASSERT_TRUE(barrier(c.world()).ok());
    }
  });
}

/// The fake and the library report memory that is freed before its registration ends, and no operation names
/// it any more.
TEST_F(Released, MemoryFreedBeforeItsReleaseIsReported) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board&) {
    std::optional<Own> memory(std::in_place);
    ASSERT_TRUE(memory->make(c, 4 * kCount).ok());
    auto r = c.register_memory(memory->data(), memory->bytes(), c.device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c.world(), c, *memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    ASSERT_TRUE(barrier(c.world()).ok());
    memory.reset();
    EXPECT_EQ(fake().freed_in_use(), 1);
    testing::internal::CaptureStderr();
    EXPECT_TRUE(r->release().ok());
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(has(said, "was freed before its registration ended")) << said;
    ASSERT_TRUE(barrier(c.world()).ok());
  });
}

/// CUDA keeps memory of cuMemMap as long as it is mapped or retained anywhere.
TEST_F(Released, ChunksMayBeFreedAtOnce) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board& board) {
    Own memory;
    ASSERT_TRUE(memory.make_chunks(c, {2, 2}, 4).ok());
    auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c.world(), c, memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    const int mapped = fake().live().imports;
    ASSERT_TRUE(barrier(c.world()).ok());
    if (c.world().rank() == 1) {
      EXPECT_TRUE(r->release(0ms).ok());
      memory.free();
      EXPECT_EQ(fake().freed_in_use(), 0);
      board.stage[1] = 1;
    }
    EXPECT_TRUE(eventually([&] { return board.stage[1] == 1; }));
    Own other;
    ASSERT_TRUE(other.make(c, 4 * kCount).ok());
    ASSERT_EQ(settle(c.world(), c, other, 0, kCount, &named), "");
    if (c.world().rank() == 0) {
      EXPECT_LT(fake().live().imports, mapped);
    }
    ASSERT_TRUE(barrier(c.world()).ok());
  });
}

/// Neither the owner nor the other rank calls anything: the owner's piece is released when the end of its
/// operation is detected, and the other rank's mapping when its watch thread detects the end of the export.
TEST_F(Released, MemoryIsUnmappedWithoutFurtherCalls) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board& board) {
    Own memory;
    ASSERT_TRUE(memory.make_chunks(c, {2, 2}, 4).ok());
    auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c.world(), c, memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    const int mapped = fake().live().imports;
    ASSERT_TRUE(barrier(c.world()).ok());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    const View v(memory.data(), kCount, DType::f32, c.device());
    if (c.world().rank() == 1) {
      auto w = all_reduce(c.world(), v, v, ReduceOp::sum, *s);
      ASSERT_TRUE(w.ok());
      EXPECT_TRUE(r->release(0ms).ok());
      EXPECT_EQ(fake().live().retained, 2);
      board.stage[1] = 1;
      ASSERT_TRUE(w->wait().ok());
    } else {
      EXPECT_TRUE(eventually([&] { return board.stage[1] == 1; }));
      ASSERT_TRUE(all_reduce(c.world(), v, v, ReduceOp::sum, *s)->wait().ok());
    }
    const bool owner = c.world().rank() == 1;
    EXPECT_TRUE(
        eventually([&] { return owner ? fake().live().retained == 0 : fake().live().imports < mapped; }));
    board.stage[2 + c.world().rank()] = 1;
    EXPECT_TRUE(eventually([&] { return board.stage[2] == 1 && board.stage[3] == 1; }));
    ASSERT_TRUE(barrier(c.world()).ok());
  });
}

/// The other rank's driver waits for a stream of its user when it unmaps: its watch thread still answers.
TEST_F(Released, WatchThreadAnswersWhileItsDriverWaits) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board& board) {
    Own memory;
    ASSERT_TRUE(memory.make(c, 4 * kCount).ok());
    auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c.world(), c, memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    const auto word = fake().alloc_pinned(4);
    auto users = fake().create_stream(c.device().index, 0);
    ASSERT_TRUE(word.ok() && users.ok());
    std::atomic_ref flag(*static_cast<std::uint32_t*>(*word));
    flag = 0;
    ASSERT_TRUE(barrier(c.world()).ok());
    if (c.world().rank() == 0) {
      const gpu::MemOp until{gpu::MemOp::Kind::wait_equal, 1, *word};
      ASSERT_TRUE(fake().enqueue(std::span(&until, 1), *users).ok());
      board.stage[0] = 1;
      EXPECT_TRUE(eventually([&] { return board.stage[1] == 1; }));
      flag = 1;
      ASSERT_TRUE(fake().synchronize(*users).ok());
    } else {
      EXPECT_TRUE(eventually([&] { return board.stage[0] == 1; }));
      const Status open = r->release(300ms);
      EXPECT_THAT(open, Fails(Reason::deadline, 0));
      EXPECT_TRUE(has(open.message(), "still has")) << open.message();
      board.stage[1] = 1;
      const Status closed = r->release(5s);
      EXPECT_TRUE(closed.ok()) << closed.message();
      memory.free();
      EXPECT_EQ(fake().freed_in_use(), 0);
    }
    EXPECT_EQ(fake().stalls(), 0);
    ASSERT_TRUE(fake().destroy_stream(*users).ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    if (c.world().rank() == 0) {
      EXPECT_TRUE(r->release(5s).ok());
    }
  });
}

/// A context that has closed has unmapped what others registered, though its handles still exist. What a
/// graph uses stays until its group has ended, and the owner receives an error that says so.
TEST_F(Released, ClosedContextHasUnmappedAllButGraphMemory) {
  OURO_NEEDS_PROCESSES();
  for (const bool graph : {false, true}) {
    on_ranks([&](Context& c, Board& board) {
      Own memory;
      ASSERT_TRUE(memory.make(c, 4 * kCount).ok());
      auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
      ASSERT_TRUE(r.ok()) << r.status().message();
      const int both[] = {0, 1};
      auto g = c.group(both, "beside");
      ASSERT_TRUE(g.ok());
      bool named = false;
      ASSERT_EQ(settle(*g, c, memory, 0, kCount, &named), "");
      EXPECT_TRUE(named);
      if (graph) {
        auto made = gpu::gpu().create_stream(c.device().index, 0);
        ASSERT_TRUE(made.ok());
        auto s = Stream::cuda(made->handle, made->device);
        const View v(memory.data(), kCount, DType::f32, c.device());
        ASSERT_TRUE(gpu::gpu().begin_capture(*made).ok());
        ASSERT_TRUE(all_reduce(*g, v, v, ReduceOp::max, *s).ok());
        auto captured = gpu::gpu().end_capture(*made);
        ASSERT_TRUE(captured.ok());
        EXPECT_TRUE(gpu::gpu().destroy_graph(*captured).ok());
      }
      ASSERT_TRUE(barrier(c.world()).ok());
      if (c.world().rank() == 0) {
        const int mapped = fake().live().imports;
        EXPECT_TRUE(c.close().ok());
        EXPECT_EQ(fake().live().imports < mapped, !graph);
        board.stage[0] = 1;
        EXPECT_TRUE(eventually([&] { return board.stage[1] == 1; }));
        *g = Group();
        board.stage[0] = 2;
        EXPECT_TRUE(eventually([&] { return board.stage[1] == 2; }));
      } else {
        EXPECT_TRUE(eventually([&] { return board.stage[0] >= 1; }));
        if (graph) {
          const Status open = r->release(20ms);
          EXPECT_THAT(open, Fails(Reason::deadline));
        }
        if (graph) {
          *g = Group();
          const Status open = r->release(20ms);
          EXPECT_THAT(open, Fails(Reason::deadline, 0));
          EXPECT_TRUE(has(open.message(), "has closed its context")) << open.message();
        }
        if (!graph) {
          EXPECT_TRUE(r->release(5s).ok());
          memory.free();
          EXPECT_EQ(fake().freed_in_use(), 0);
        }
        board.stage[1] = 1;
        EXPECT_TRUE(eventually([&] { return board.stage[0] == 2; }));
        const Status closed = r->release(5s);
        EXPECT_TRUE(closed.ok()) << closed.message();
        memory.free();
        EXPECT_EQ(fake().freed_in_use(), 0);
        board.stage[1] = 2;
      }
      EXPECT_EQ(fake().stalls(), 0);
    });
  }
}

/// Memory that waits for the end of an operation is there for the next allocation after that.
TEST_F(Released, DeferredMemoryIsReusedBeforeAnAllocationFails) {
  OURO_NEEDS_PROCESSES();
  constexpr std::size_t kMost = 64 << 20;
  const auto body = [](Context& c, Board&) {
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    Floats floats;
    ASSERT_TRUE(floats.make(c, kCount).ok() && floats.fill(1).ok());
    for (int turn = 0; turn < 3; ++turn) {
      auto first = c.alloc(kMost, c.device()), second = c.alloc(kMost, c.device());
      ASSERT_TRUE(first.ok() && second.ok()) << first.status().message() << second.status().message();
      EXPECT_THAT(c.alloc(kMost, c.device()).status(), Fails(Reason::resource));
      auto w = all_reduce(c.world(), floats.view(), floats.view(), ReduceOp::max, *s);
      ASSERT_TRUE(w.ok());
      *first = Memory(), *second = Memory();
      ASSERT_TRUE(w->wait().ok());
    }
  };
  on_ranks(body, 5 * kMost / 2);  // the group itself needs little
}

/// A graph keeps what it may name until its group ends; release says so.
TEST_F(Released, MemoryThatAGraphUsesIsKeptUntilItsGroupEnds) {
  OURO_NEEDS_PROCESSES();
  on_ranks([](Context& c, Board&) {
    Own memory;
    ASSERT_TRUE(memory.make(c, 4 * kCount).ok());
    auto r = c.register_memory(memory.data(), memory.bytes(), c.device());
    ASSERT_TRUE(r.ok());
    const int both[] = {0, 1};
    auto g = c.group(both, "captured");
    ASSERT_TRUE(g.ok());
    bool named = false;
    ASSERT_EQ(settle(*g, c, memory, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    auto made = gpu::gpu().create_stream(c.device().index, 0);
    ASSERT_TRUE(made.ok());
    auto s = Stream::cuda(made->handle, made->device);
    ASSERT_TRUE(s.ok());
    const View v(memory.data(), kCount, DType::f32, c.device());
    ASSERT_TRUE(gpu::gpu().begin_capture(*made).ok());
    ASSERT_TRUE(all_reduce(*g, v, v, ReduceOp::max, *s).ok());
    auto graph = gpu::gpu().end_capture(*made);
    ASSERT_TRUE(graph.ok());
    for (int k = 0; k < 3; ++k) {
      ASSERT_TRUE(gpu::gpu().launch(*graph, *made).ok());
      ASSERT_TRUE(s->synchronize().ok());
    }
    ASSERT_TRUE(barrier(c.world()).ok());
    const Status open = r->release(20ms);
    EXPECT_THAT(open, Fails(Reason::deadline));
    EXPECT_TRUE(has(open.message(), "a graph")) << open.message();
    ASSERT_TRUE(gpu::gpu().launch(*graph, *made).ok());  // it may still be used
    ASSERT_TRUE(s->synchronize().ok());
    EXPECT_TRUE(gpu::gpu().destroy_graph(*graph).ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    ASSERT_TRUE(g->close().ok());
    *g = Group();
    const Status closed = r->release(5s);
    EXPECT_TRUE(closed.ok()) << closed.message();
    ASSERT_TRUE(barrier(c.world()).ok());
  });
}

/// The blocks of a group are mapped by the other processes until their parts of the group are destroyed.
class GroupBlocksOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(GroupBlocksOfProcesses, AreUnmappedAfterTheirGroup) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const std::string path = GetParam();
  const ForcedPath forced(path, Mode::processes);
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board&) {
    gpu::install(new gpu::FakeGpu({.devices = path == "leader" ? 1 : 2, .multiprocessors = 16}));
    auto c = Context::create(options(rank, 2, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    Floats floats;
    ASSERT_TRUE(floats.make(*c, kCount).ok());
    const int both[] = {0, 1};
    constexpr int kBuffers = 1;  // of the other rank, which stay mapped as long as they are exported
    for (int turn = 0; turn < 4; ++turn) {
      auto g = c->group(both, fmt::format("group {}", turn));
      ASSERT_TRUE(g.ok()) << g.status().message();
      ASSERT_TRUE(floats.fill(1).ok());
      auto s = Stream::create(c->device());
      ASSERT_TRUE(s.ok());
      auto w = all_reduce(*g, floats.view(), floats.view(), ReduceOp::sum, *s);
      ASSERT_TRUE(w.ok() && w->wait().ok());
      ASSERT_EQ(only_ran(*g, path), "");
      if (rank == 1) {
        EXPECT_GT(fake().live().imports, 0);
      }
      ASSERT_TRUE(g->close().ok());
      *g = Group();
      EXPECT_TRUE(eventually([&] { return fake().live().imports <= kBuffers; }))
          << fake().live().imports << " imports after group " << turn;
      ASSERT_TRUE(barrier(c->world()).ok());
    }
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

INSTANTIATE_TEST_SUITE_P(Paths, GroupBlocksOfProcesses, testing::Values("leader", "resident", "stream"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ouro::test
