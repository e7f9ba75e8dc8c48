// A Gpu that counts: what it counts, where, and that it hands everything on; and the report of
// OURO_GPU_TRACE.
#include "kernels/device/counting_gpu.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "kernels/device/gpu_trace.h"
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void nothing(void*) {}

/// Calls every function of Gpu once, those of the second group with arguments that any implementation
/// refuses.
void call_everything(Gpu& g) {
  const Stream s{0, nullptr};
  const Event e;
  const Kernel k;
  const Region r;
  const MemOp op;
  MappedRange range;
  Multicast m;
  const auto drop = [](const auto& result) { (void)result.ok(); };
  (void)g.peer_access(0, 0), drop(g.enable_peer(9, 9)), drop(g.reachable(9));
  drop(g.properties(9)), drop(g.current_device()), drop(g.set_current_device(9)), drop(g.scope(9));
  drop(g.alloc(9, 1)), drop(g.alloc_shareable(9, 1)), drop(g.alloc_pinned(0)),
      drop(g.register_host(nullptr, 0));
  drop(g.free(&m)), drop(g.free_region(r)), drop(g.free_pinned(&m)), drop(g.unregister_host(&m));
  drop(g.export_fd(r)), drop(g.ipc_export(nullptr)), drop(g.export_piece(r));
  drop(g.import_fd(9, Fd(), 1)), drop(g.ipc_open(9, {})), drop(g.reserve_range(9, 1));
  drop(g.map_piece(&range, Fd(), 1));
  drop(g.ipc_close(9, nullptr)), drop(g.free_range(range));
  drop(g.pointer(nullptr)), drop(g.retain_piece(nullptr)), drop(g.release_piece(r)), drop(g.open_to_peers(r));
  drop(g.multicast_create(9, 1, 1)), drop(g.export_fd(m)), drop(g.multicast_import(9, Fd(), 1));
  drop(g.multicast_join(m)), drop(g.multicast_bind(&m, r)), drop(g.free_multicast(m));
  drop(g.flush_arrivals(0)), drop(g.create_stream(9, 0)), drop(g.destroy_stream(s)), drop(g.check_context(s)),
      drop(g.synchronize(s));
  drop(g.query(s)), drop(g.create_event(9, false)), drop(g.destroy_event(e)), drop(g.record(e, s));
  drop(g.wait(s, e)), drop(g.synchronize(e)), drop(g.query(e)), drop(g.elapsed_ms(e, e));
  drop(g.copy(nullptr, nullptr, 0, s)), drop(g.set(nullptr, 0, 0, s)), drop(g.enqueue({&op, 1}, s));
  drop(g.launch(k, {}, nullptr, s)), drop(g.call_host(s, nothing, nullptr)), drop(g.capturing(s));
  drop(g.begin_capture(s)), drop(g.end_capture(s)), drop(g.launch(Graph(), s)),
      drop(g.destroy_graph(Graph()));
  drop(g.info(k, 9)), drop(g.resident_blocks(k, 1, 9)), drop(g.reserve_stack(9, 1));
}

TEST(CountingGpu, CountsEachFunctionAsOneCallOfItsKind) {
  const auto none = no_gpu("a test");
  CountingGpu counting(*none);
  call_everything(counting);
  const CallCounts c = counting.mine();
  EXPECT_EQ(c.text(CallClass::piece),
            "launch 1, batch 1, record 1, wait 1, copy 1, set 1, call_host 1, launch_graph 1");
  EXPECT_EQ(c.text(CallClass::query), "query_stream 1, query_event 1");
  EXPECT_EQ(c.text(CallClass::other),
            "capturing 1, check_context 1, pointer 1, synchronize_stream 1, synchronize_event 1, elapsed 1, "
            "current_device 1, "
            "set_current_device 1, scope 1, properties 1");
  EXPECT_EQ(
      c.text(CallClass::setup),
      "flush_arrivals 1, create_stream 1, destroy_stream 1, create_event 1, destroy_event 1, capture 2, "
      "destroy_graph 1, alloc 4, free 4, export_memory 3, map 4, unmap 2, piece_of_program 3, "
      "multicast 6, peers 3, kernel_info 2, reserve_stack 1");
  EXPECT_EQ(c, counting.total());
  EXPECT_STREQ(counting.name(), "none");
  EXPECT_EQ(counting.version(), none->version());
}

TEST(CountingGpu, ResultsAreThoseOfTheOther) {
  FakeGpu fake({.devices = 3, .multicast = true});
  CountingGpu g(fake);
  EXPECT_EQ(g.devices(), 3);
  EXPECT_EQ(value(g.properties(1)).uuid, value(fake.properties(1)).uuid);
  EXPECT_TRUE(g.peer_access(0, 2));
  const Stream s = value(g.create_stream(0, 0));
  auto* const memory = static_cast<std::byte*>(value(g.alloc(0, 4096)));
  OK(g.set(memory, 7, 4096, s));
  std::byte back[4096] = {};
  OK(g.copy(back, memory, sizeof back, s));
  OK(g.synchronize(s));
  EXPECT_EQ(back[4095], std::byte{7});
  EXPECT_EQ(value(g.pointer(memory)).base, memory);
  EXPECT_THAT(g.alloc(9, 1), Fails(Reason::invalid, ""));
  OK(g.flush_arrivals(0));  // no error, as of the emulated device: the interface's own function has one
  const Multicast m = value(g.multicast_create(0, 2, 4096));
  OK(g.free_multicast(m));
  OK(g.free(memory));
  OK(g.destroy_stream(s));
  EXPECT_EQ(fake.live(), FakeLive());
}

/// The calls of the driver around a call: see cuda.cc, cuda_driver.h and cuda_memory.cc.
TEST(CountingGpu, StatesHiddenCallsOfTheDriver) {
  FakeGpu fake;
  CountingGpu g(fake);
  const Stream s = value(g.create_stream(0, 0));
  const Event e = value(g.create_event(0, false));
  auto* const memory = static_cast<std::uint32_t*>(value(g.alloc_pinned(4096)));
  void* const device = value(g.alloc(0, 64));
  const auto calls_of = [&](auto&& f) {
    const CallCounts before = g.mine();
    f();
    return (g.mine() - before).driver_calls();
  };
  EXPECT_EQ(calls_of([&] { OK(g.record(e, s)); }), 4) << "get, push, the call, pop";
  EXPECT_EQ(calls_of([&] { (void)value(g.capturing(s)); }), 4);
  EXPECT_EQ(calls_of([&] { (void)value(g.capturing({0, kLegacyStream})); }), 3) << "no call: it never is";
  OK(g.synchronize(s));
  EXPECT_EQ(calls_of([&] { EXPECT_TRUE(value(g.query(e))); }), 6) << "the capture mode twice";
  const MemOp wait{MemOp::Kind::wait_equal, 1, memory};
  *memory = 0;
  EXPECT_EQ(calls_of([&] { OK(g.enqueue({&wait, 1}, s)); }), 4);
  EXPECT_EQ(calls_of([&] { EXPECT_FALSE(value(g.query(s))); }), 7)
      << "and the error \"not ready\" is cleared";
  store(memory, 1);
  OK(g.synchronize(s));
  const std::vector<MemOp> many(65, {MemOp::Kind::write, 1, memory});
  const CallCounts before = g.mine();
  EXPECT_EQ(calls_of([&] { OK(g.enqueue(many, s)); }), 5) << "the driver takes 64 at a time";
  EXPECT_EQ((g.mine() - before).words, 65);
  const bool legacy = value(fake.pointer(device)).legacy_ipc;
  EXPECT_EQ(calls_of([&] { (void)value(g.pointer(device)); }), legacy ? 5 : 7);
  EXPECT_EQ(calls_of([&] { (void)value(g.pointer(memory)); }), 1) << "memory of the host";
  OK(g.synchronize(s));
}

TEST(CountingGpu, SeparatesThreadsAndKeepsThoseThatHaveEnded) {
  const auto none = no_gpu("a test");
  CountingGpu g(*none);
  (void)g.devices();
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      pthread_setname_np(pthread_self(), i == 1 ? "other" : i == 0 ? "worker-1" : "worker-2");
      const CallCounts before = g.mine();
      (void)g.capturing({}).ok();
      EXPECT_EQ((g.mine() - before).text(CallClass::other), "capturing 1");
    }).join();
  EXPECT_EQ(g.mine(), CallCounts());
  EXPECT_EQ(g.total().of(GpuCall::capturing), 3);
  const auto classes = g.by_class();
  EXPECT_EQ(classes.at("worker").counts.of(GpuCall::capturing), 2);
  EXPECT_EQ(classes.at("other").counts.of(GpuCall::capturing), 1);
}

TEST(CountingGpu, ForkedChildrenCountTheirOwnCalls) {
  OURO_NEEDS_PROCESSES();
  const auto none = no_gpu("a test");
  CountingGpu g(*none);
  (void)g.capturing({}).ok();
  const pid_t child = fork();
  if (child == 0) {
    (void)g.current_device().ok();
    _exit(g.total().text(CallClass::other) == "current_device 1" ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(g.total().text(CallClass::other), "capturing 1");
}

TEST(CountingGpu, MeasuresTimesWhenAsked) {
  FakeGpu fake;
  CountingGpu g(fake, CountingGpu::Times::on);
  fake.delay(FakeOp::alloc, 20ms);
  OK(g.free(value(g.alloc(0, 64))));
  fake.delay(FakeOp::alloc, 0us);
  OK(g.free(value(g.alloc(0, 64))));
  const auto classes = g.by_class();
  ASSERT_EQ(classes.size(), 1);
  const auto& r = classes.begin()->second;
  constexpr auto kAlloc = static_cast<std::size_t>(GpuCall::alloc);
  EXPECT_EQ(r.counts.calls[kAlloc], 2);
  EXPECT_GE(r.max_ns[kAlloc], 20'000'000);
  EXPECT_GT(r.total_ns[kAlloc], r.max_ns[kAlloc]);
  const auto lines = trace_lines(g);
  EXPECT_THAT(lines, ElementsAre(testing::AllOf(HasSubstr("alloc"), HasSubstr(" 2 calls")), HasSubstr("free"),
                                 HasSubstr("setup 4")));
}

/// A program whose calls are traced prints them when it ends.
TEST(CountingGpu, TraceIsLoggedAtTheEndOfAProcess) {
  OURO_NEEDS_PROCESSES();
  EXPECT_EXIT(
      {
        setenv("OURO_FAKE_GPUS", "1", 1);
        setenv("OURO_GPU_TRACE", "1", 1);
        (void)value(gpu().create_stream(0, 0));
        std::exit(0);
      },
      testing::ExitedWithCode(0), "GPU .*create_stream +1 calls");
}

TEST(CountingGpu, IsNotThereUnlessAsked) {
  OURO_NEEDS_PROCESSES();
  EXPECT_EXIT(
      {
        setenv("OURO_FAKE_GPUS", "1", 1);
        unsetenv("OURO_GPU_TRACE");
        std::exit(dynamic_cast<FakeGpu*>(&gpu()) != nullptr ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ouro::gpu::test
