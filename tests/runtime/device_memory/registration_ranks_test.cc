// Registered memory of ranks that die, and of ranks that share a GPU. Ranks are processes with a fake GPU
// each, or one for all.
#include <thread>

#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// The owner of what others have mapped dies in the midst of operations.
TEST(Registrations, SurvivorsContinueAfterTheOwnersDeath) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board& board) {
    gpu::install(new gpu::FakeGpu(
        {.devices = 3, .multiprocessors = 16, .harsh = {.unmapping_waits = true, .patience = 5s}}));
    auto c = Context::create(options(rank, 3, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    Own chunks, legacy;
    ASSERT_TRUE(chunks.make_chunks(*c, {1, 1, 2}, 4).ok() && legacy.make(*c, 4 * kCount).ok());
    auto a = c->register_memory(chunks.data(), chunks.bytes(), c->device());
    auto b = c->register_memory(legacy.data(), legacy.bytes(), c->device());
    ASSERT_TRUE(a.ok() && b.ok());
    bool named = false;
    ASSERT_EQ(settle(c->world(), *c, chunks, 8, kCount, &named), "");
    EXPECT_TRUE(named);
    ASSERT_EQ(settle(c->world(), *c, legacy, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    board.stage[rank] = 1;
    Status s;
    while (s.ok()) {
      for (Own* on : {&chunks, &legacy}) {
        const View v(on->data(), kCount, DType::f32, c->device());
        if (s.ok()) s = all_reduce(c->world(), v, v, ReduceOp::max);
      }
    }
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    auto rest = c->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    ASSERT_EQ(settle(*rest, *c, legacy, 0, kCount, &named), "");
    EXPECT_TRUE(named);
    ASSERT_TRUE(barrier(*rest).ok());
    const Status released = b->release(5s);
    EXPECT_TRUE(released.ok()) << released.message();
    ASSERT_TRUE(barrier(*rest).ok());
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({2});
  ranks.join({2});
}

/// Processes that share a GPU: the leader's kernel reaches memory of cuMemMap in place, in graphs, too, where
/// there can be no stand-in.
TEST(Registrations, LeaderKernelReachesRegisteredMemoryInPlace) {
  OURO_NEEDS_PROCESSES();
  OURO_NEEDS_FAKES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board&) {
    gpu::install(new gpu::FakeGpu());
    auto c = Context::create(options(rank, 3, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    Own memory;
    ASSERT_TRUE(memory.make_chunks(*c, {1, 2, 1}, 4).ok());
    auto r = c->register_memory(memory.data(), memory.bytes(), c->device());
    ASSERT_TRUE(r.ok()) << r.status().message();
    bool named = false;
    ASSERT_EQ(settle(c->world(), *c, memory, 4, kCount, &named), "");
    auto made = gpu::gpu().create_stream(c->device().index, 0);
    ASSERT_TRUE(made.ok());
    auto s = Stream::cuda(made->handle, made->device);
    ASSERT_TRUE(s.ok());
    const View v(memory.data() + 4, kCount, DType::f32, c->device());
    ASSERT_TRUE(memory.fill(4, kCount, 1).ok());
    ASSERT_TRUE(barrier(c->world()).ok());
    ASSERT_TRUE(gpu::gpu().begin_capture(*made).ok());
    auto w = all_reduce(c->world(), v, v, ReduceOp::sum, *s);
    auto graph = gpu::gpu().end_capture(*made);
    ASSERT_TRUE(w.ok()) << w.status().message();
    ASSERT_TRUE(graph.ok());
    for (int k = 0; k < 2; ++k) {
      ASSERT_TRUE(gpu::gpu().launch(*graph, *made).ok());
      ASSERT_TRUE(s->synchronize().ok());
    }
    EXPECT_EQ(memory.expect(4, kCount, 9), "");
    EXPECT_TRUE(gpu::gpu().destroy_graph(*graph).ok());
    EXPECT_EQ(only_ran(c->world(), "leader"), "");
    ASSERT_TRUE(barrier(c->world()).ok());
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

}  // namespace
}  // namespace ouro::test
