// Operations that a driver takes only in part, devices that the build has no code for, and streams that are
// in a capture while others are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/group/group.h"
#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

constexpr std::size_t kCount = 20'000;

class GpuPartFake : public testing::Test {
 protected:
  void SetUp() override { OURO_NEEDS_FAKES(); }
  void TearDown() override { gpu::install(nullptr); }
  /// Never destroyed, because pools of the process keep its events.
  static gpu::FakeGpu& install(gpu::FakeOptions o) {
    auto* fake = new gpu::FakeGpu(std::move(o));
    gpu::install(fake);
    return *fake;
  }
};
class GpuPart : public GpuPartFake, public testing::WithParamInterface<const char*> {
 protected:
  static int devices(int ranks) { return std::string_view(GetParam()) == "leader" ? 1 : ranks; }
};
INSTANTIATE_TEST_SUITE_P(All, GpuPart, testing::Values("leader", "resident", "copies", "stream", "staged"),
                         [](const auto& info) { return info.param; });

/// A rank's memory, and a stream that can be captured.
struct Seat {
  Floats data;
  gpu::Stream made;
  Stream stream;
  std::string make(Context& c) {
    OURO_RANK_OK(data.make(c, kCount));
    OURO_RANK_OK(data.fill(1));
    const auto s = gpu::gpu().create_stream(c.device().index, 0);
    OURO_RANK_OK(s);
    made = *s;
    const auto of_user = Stream::cuda(made.handle, made.device);
    OURO_RANK_OK(of_user);
    stream = *of_user;
    return "";
  }
  /// Of rank 0's numbers; on the path of copies, which reduces nothing, too.
  Result<Work> spread(Group& g) { return broadcast(g, data.view(), data.view(), 0, stream); }
};

/// The other rank waits for what is missing in the stream, whatever the driver calls its reason. The ranks
/// have a deadline that the test does not reach.
TEST_P(GpuPart, PartlyEnqueuedOperationFailsTheGroup) {
  const std::string_view path_name = GetParam();
  const bool copies = path_name == "copies" || path_name == "staged";
  auto& fake = install({.devices = devices(2), .multiprocessors = 16});
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 300s;
  for (const Reason reason : {Reason::invalid, Reason::unsupported}) {
    auto contexts = thread_contexts(2, o);
    std::vector<Seat> seats(2);
    for (std::size_t r = 0; r < 2; ++r) ASSERT_EQ(seats[r].make(contexts[r]), "");
    for (int k = 0; k < 2; ++k) {  // the first operation makes what the second uses
      std::vector<Work> works;
      for (std::size_t r = 0; r < 2; ++r) works.push_back(*seats[r].spread(contexts[r].world()));
      for (const Work& w : works) ASSERT_TRUE(w.wait().ok()) << w.wait().message();
    }
    const auto root = seats[0].spread(contexts[0].world());
    ASSERT_TRUE(root.ok()) << root.status().message();
    fake.fail_next(copies ? gpu::FakeOp::copy : gpu::FakeOp::kernel, reason);
    const Status said = seats[1].spread(contexts[1].world()).status();
    EXPECT_THAT(said, Fails(Reason::device, 1));
    EXPECT_NE(said.message().find("its streams have a part of the operation"), std::string::npos)
        << said.message();
    for (std::size_t r = 0; r < 2; ++r) {
      Status heard;  // the root may not know yet, and needs nothing of rank 1
      for (const auto until = Clock::now() + 20s; heard.ok() && Clock::now() < until;) {
        const auto next = seats[r].spread(contexts[r].world());
        heard = next.ok() ? next->wait() : next.status();
      }
      EXPECT_THAT(heard, Fails(Reason::device, 1));
      EXPECT_TRUE(gpu::gpu().synchronize(seats[r].made).ok()) << "a stream waits on";
    }
    // Where the root's part needs nothing of rank 1, it has ended well.
    const Status others = root->wait();
    EXPECT_TRUE(others.ok() || others.reason() == Reason::device) << others.message();
  }
}

/// While streams of all ranks are being captured, these ranks run operations on other streams, and capture
/// others.
class GpuCaptures : public GpuPart {};  // what goes through the host is not captured
INSTANTIATE_TEST_SUITE_P(All, GpuCaptures, testing::Values("leader", "resident", "copies", "stream"),
                         [](const auto& info) { return info.param; });
TEST_P(GpuCaptures, CapturesAndEagerOperationsMayOverlap) {
  install({.devices = devices(3), .multiprocessors = 16});
  const ForcedPath path(GetParam());
  Watchdog watchdog;
  const auto body = [&](Context& c) -> std::string {
    Group& g = c.world();
    Seat captured, eager, other;
    for (Seat* s : {&captured, &eager, &other})
      if (std::string said = s->make(c); !said.empty()) return said;
    OURO_RANK_OK(eager.spread(g)->wait());
    const auto mark = [&](Floats& f, float v) { return f.fill(c.rank() == 0 ? v : 0); };
    OURO_RANK_OK(barrier(g));
    OURO_RANK_OK(gpu::gpu().begin_capture(captured.made));
    OURO_RANK_OK(captured.spread(g));
    OURO_RANK_OK(mark(eager.data, 5));
    const auto between = eager.spread(g);
    OURO_RANK_OK(between);
    OURO_RANK_OK(between->wait());
    OURO_EXPECT_ALL(eager.data, 5);
    OURO_RANK_OK(gpu::gpu().begin_capture(other.made));
    OURO_RANK_OK(other.spread(g));
    OURO_RANK_OK(captured.spread(g));
    const auto first = gpu::gpu().end_capture(captured.made), second = gpu::gpu().end_capture(other.made);
    OURO_RANK_OK(first);
    OURO_RANK_OK(second);
    for (int k = 1; k < 4; ++k)
      for (const auto& [seat, graph] : {std::pair(&captured, &first), std::pair(&other, &second)}) {
        OURO_RANK_OK(mark(seat->data, static_cast<float>(10 * k)));
        OURO_RANK_OK(gpu::gpu().launch(**graph, seat->made));
        OURO_RANK_OK(seat->stream.synchronize());
        OURO_EXPECT_ALL(seat->data, static_cast<float>(10 * k));
      }
    OURO_RANK_OK(barrier(g));
    OURO_RANK_OK(gpu::gpu().destroy_graph(*first));
    OURO_RANK_OK(gpu::gpu().destroy_graph(*second));
    return only_ran(g, GetParam());
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// Not first in the launch of an operation that other ranks wait for.
TEST_F(GpuPartFake, ADeviceWithoutCodeIsRefusedAtTheStart) {
  install({.has_code = false});
  InitOptions o = options(0, 1, new_id());
  o.gpu = 0;
  const Status said = Context::create(o).status();
  EXPECT_THAT(said, Fails(Reason::unsupported));
  EXPECT_NE(said.message().find("this build has no code for GPU 0"), std::string::npos) << said.message();
  o.gpu.reset();
  o.one_gpu_each = true;
  EXPECT_THAT(Context::create(o).status(), Fails(Reason::unsupported));
  o.one_gpu_each = false;  // a job that has not asked for a GPU does without
  const auto joined = Context::create(o);
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  EXPECT_EQ(joined->device(), Device{});
}

/// A device may be waited for to make a block; nobody waits with it for the blocks that there are.
TEST_F(GpuPartFake, NewBlockIsAllocatedWithoutBlockingExistingOnes) {
  auto& fake = install({.harsh = {.allocation_waits = true, .patience = 20'000ms}});
  const ForcedPath path("leader");
  Watchdog watchdog;
  auto contexts = thread_contexts(1);
  rt::DeviceMemory& memory = contexts[0].impl()->device_memory();
  constexpr std::uint64_t kMade = 1, kNew = 2;
  ASSERT_TRUE(memory.group_block(0, kMade, 4096).ok());
  const auto word = gpu::gpu().alloc_pinned(64);
  const auto held = gpu::gpu().create_stream(0, 0);
  ASSERT_TRUE(word.ok() && held.ok());
  auto* const go = static_cast<std::uint32_t*>(*word);
  *go = 0;
  const gpu::MemOp wait{gpu::MemOp::Kind::wait_equal, 1, go};
  ASSERT_TRUE(gpu::gpu().enqueue({&wait, 1}, *held).ok());
  std::atomic<int> made{0};
  std::vector<std::thread> makers;
  for (int i = 0; i < 2; ++i)  // the second waits for what the first makes
    makers.emplace_back([&] {
      EXPECT_TRUE(memory.group_block(0, kNew, 4096).ok());
      ++made;
    });
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(memory.group_block(0, kMade, 4096).ok());
  EXPECT_EQ(made, 0) << "it has waited for the device";
  std::atomic_ref(*go).store(1, std::memory_order_release);
  for (std::thread& t : makers) t.join();
  EXPECT_EQ(fake.stalls(), 0);
  memory.drop_group_block(kMade), memory.drop_group_block(kNew);
  EXPECT_TRUE(gpu::gpu().free_pinned(*word).ok());
}

/// A rank that cannot map a buffer of another now, for want of memory or descriptors, does so later: only
/// what is refused is never asked for again.
TEST_F(GpuPartFake, BufferThatCannotBeMappedNowIsMappedLater) {
  auto& fake = install({.devices = 2, .multiprocessors = 16});
  const ForcedPath path("resident", Mode::processes);
  const auto named_after = [&](Reason reason) {
    return run_processes(2, [&, reason](Context& c) -> std::string {
      Group& g = c.world();
      Floats x;
      OURO_RANK_OK(x.make(c, 50'000));
      OURO_RANK_OK(x.fill(0));
      const auto reduce = [&] { return all_reduce(g, x.view(), x.view(), ReduceOp::max); };
      const View few(x.arena.data(), 10, DType::f32, c.device());
      OURO_RANK_OK(all_reduce(g, few, few, ReduceOp::max));  // makes the arenas
      OURO_RANK_OK(barrier(g));
      if (c.rank() == 1) fake.fail_next(gpu::FakeOp::share, reason);
      for (int k = 0; k < 20; ++k) OURO_RANK_OK(reduce());  // the first lists the buffers
      // The fault hits the first that rank 1 shares: its buffer, or its mapping of the other's.
      std::vector<int> known{g.impl()->gpu_named() > 0};
      OURO_RANK_OK(all_reduce(g, std::span(known), std::span(known)));
      OURO_RANK_CHECK(known[0] == (reason == Reason::resource ? 2 : 1), "{}", known[0]);
      return "";
    });
  };
  EXPECT_EQ(named_after(Reason::resource), "");
  EXPECT_EQ(named_after(Reason::unsupported), "");
}

}  // namespace
}  // namespace ouro::test
