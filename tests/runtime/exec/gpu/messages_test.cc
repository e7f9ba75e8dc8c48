// Messages from and to the memory of GPUs, and the conditions under which they are received there.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

TEST(GpuMessages, TravelBetweenDevicesAndTheHost) {
  OURO_NEEDS_GPU();
  for (Mode mode : {Mode::processes, Mode::threads})  // a process with threads cannot fork ranks
  {
    if (OURO_TEST_TSAN && mode == Mode::processes) continue;
    ASSERT_EQ(run(mode, 3,
                  [](Context& c) -> std::string {
                    Group& g = c.world();
                    const int next = (g.rank() + 1) % 3, prev = (g.rank() + 2) % 3;
                    auto s = Stream::create(c.device());
                    OURO_RANK_OK(s);
                    Floats a, b;
                    OURO_RANK_OK(a.make(c, 30'000));
                    OURO_RANK_OK(b.make(c, 30'000));
                    OURO_RANK_OK(a.fill(static_cast<float>(g.rank() + 1)));
                    OURO_RANK_OK(b.fill(-1));
                    group_start();
                    OURO_RANK_OK(send(g, a.view(), next, 5, *s));
                    OURO_RANK_OK(recv(g, b.view(), prev, 5, *s));
                    OURO_RANK_OK(group_end());
                    OURO_RANK_OK(s->synchronize());
                    OURO_EXPECT_ALL(b, static_cast<float>(prev + 1));
                    // Without a stream: a short message from the host into a long buffer.
                    if (g.rank() == 0) {
                      const std::vector<float> x(10, 7);
                      OURO_RANK_OK(send(g, std::span(x), 1));
                    } else if (g.rank() == 1) {
                      auto got = recv(g, b.view(), 0);
                      OURO_RANK_OK(got);
                      OURO_RANK_CHECK(got->bytes == 40 && got->source == 0, "{} bytes", got->bytes);
                      auto bytes = b.arena.read();
                      OURO_RANK_OK(bytes);
                      float in, out;
                      std::memcpy(&in, &(*bytes)[36], 4);
                      std::memcpy(&out, &(*bytes)[40], 4);
                      OURO_RANK_CHECK(in == 7 && out == 1, "{} {}", in, out);
                    }
                    OURO_RANK_OK(barrier(g));
                    return "";
                  }),
              "")
        << name(mode);
  }
}

/// Waits for a message of rank 0.
Result<Matched> next(Group& g, int tag) {
  for (const auto end = std::chrono::steady_clock::now() + kHang; std::chrono::steady_clock::now() < end;) {
    auto found = match(g, 0, tag);
    OURO_TRY(found.status());
    if (*found) return **found;
    std::this_thread::yield();
  }
  return Status(Reason::deadline, "nothing came");
}

/// A receive that requires an exact length refuses another, with and without a stream, and the message
/// stays queued.
TEST(GpuMessages, LengthMismatchIsRefusedAndTheMessageStaysQueued) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          if (g.rank() == 0) {
                            const std::vector<float> x(10, 7);
                            OURO_RANK_OK(send(g, std::span(x), 1, 3));
                            OURO_RANK_OK(barrier(g));
                            return "";
                          }
                          auto s = Stream::create(c.device());
                          OURO_RANK_OK(s);
                          Floats longer, right;
                          OURO_RANK_OK(longer.make(c, 11));
                          OURO_RANK_OK(right.make(c, 10));
                          OURO_RANK_OK(longer.fill(1));
                          const RecvOptions exact{.exact = true};
                          const Status first = recv(g, longer.view(), 0, 3, exact).status();
                          OURO_RANK_CHECK(first.reason() == Reason::mismatch, "{}", first.message());
                          auto work = recv(g, longer.view(), 0, 3, *s, exact);
                          OURO_RANK_OK(work);
                          const Status second = work->wait();
                          OURO_RANK_CHECK(second.reason() == Reason::mismatch, "{}", second.message());
                          OURO_EXPECT_ALL(longer, 1);
                          OURO_RANK_OK(recv(g, right.view(), 0, 3, exact));
                          OURO_EXPECT_ALL(right, 7);
                          OURO_RANK_OK(barrier(g));
                          return "";
                        }),
            "");
}

/// As on the host, both ends say which elements a message has; with a stream, too.
TEST(GpuMessages, ReceiveOfAnotherElementTypeIsRefused) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          if (g.rank() == 0) {
                            const std::vector<float> x(10, 7);
                            OURO_RANK_OK(send(g, std::span(x), 1, 3));
                            OURO_RANK_OK(barrier(g));
                            return "";
                          }
                          auto s = Stream::create(c.device());
                          OURO_RANK_OK(s);
                          Floats right;
                          OURO_RANK_OK(right.make(c, 10));
                          const View other(right.view().data, 10, DType::i32, c.device());
                          const Status first = recv(g, other, 0, 3).status();
                          OURO_RANK_CHECK(first.reason() == Reason::mismatch, "{}", first.message());
                          auto work = recv(g, other, 0, 3, *s);
                          OURO_RANK_OK(work);
                          const Status second = work->wait();
                          OURO_RANK_CHECK(second.reason() == Reason::mismatch, "{}", second.message());
                          OURO_RANK_OK(recv(g, right.view(), 0, 3));
                          OURO_EXPECT_ALL(right, 7);
                          OURO_RANK_OK(barrier(g));
                          return "";
                        }),
            "");
}

/// A message that was set aside is received on a GPU, and no other in its place.
TEST(GpuMessages, MatchedMessageIsReceivedByItsHandle) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          if (g.rank() == 0) {
                            for (const float v : {1.0f, 2.0f, 3.0f}) {
                              const std::vector<float> x(100, v);
                              OURO_RANK_OK(send(g, std::span(x), 1, 4));
                            }
                            OURO_RANK_OK(barrier(g));
                            return "";
                          }
                          auto first = next(g, 4), second = next(g, 4);
                          OURO_RANK_OK(first);
                          OURO_RANK_OK(second);
                          Floats here;
                          OURO_RANK_OK(here.make(c, 100));
                          OURO_RANK_OK(recv(g, *second, here.view()));
                          OURO_EXPECT_ALL(here, 2);
                          OURO_RANK_OK(recv(g, *first, here.view()));
                          OURO_EXPECT_ALL(here, 1);
                          OURO_RANK_OK(recv(g, here.view(), 0, 4));
                          OURO_EXPECT_ALL(here, 3);
                          OURO_RANK_OK(barrier(g));
                          return "";
                        }),
            "");
}

/// A receive into a GPU ends at its own deadline; the group and the GPU's stream are not affected.
TEST(GpuMessages, ReceiveEndsAtItsOwnDeadline) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(run_threads(2,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          Floats here;
                          OURO_RANK_OK(here.make(c, 100));
                          OURO_RANK_OK(here.fill(5));
                          if (g.rank() == 1) {
                            const Status s =
                                recv(g, here.view(), 0, 4, std::chrono::milliseconds(50)).status();
                            OURO_RANK_CHECK(s.reason() == Reason::deadline, "{}", s.message());
                            OURO_EXPECT_ALL(here, 5);
                          }
                          OURO_RANK_OK(g.status());
                          OURO_RANK_OK(barrier(g));
                          if (g.rank() == 0) {
                            OURO_RANK_OK(here.fill(3));
                            OURO_RANK_OK(send(g, here.view(), 1, 4));
                          } else {
                            OURO_RANK_OK(recv(g, here.view(), 0, 4));
                          }
                          OURO_EXPECT_ALL(here, 3);
                          OURO_RANK_OK(barrier(g));
                          return "";
                        }),
            "");
}

/// A buffer that is ignored on a rank may be declared to be anywhere: it does not affect the path.
TEST(GpuMessages, IgnoredBuffersDoNotAffectThePath) {
  OURO_NEEDS_GPU();
  EXPECT_EQ(
      run_threads(2,
                  [](Context& c) -> std::string {
                    Group& g = c.world();
                    Floats there;
                    OURO_RANK_OK(there.make(c, 100));
                    OURO_RANK_OK(there.fill(1));
                    std::vector<float> in(100, 2), out(100, 0), many(200, 4);
                    const bool root = g.rank() == 0;
                    const CView host_in(std::span<const float>{in});
                    const View host_out(std::span<float>{out});
                    // Data on the host, the ignored side on a GPU.
                    OURO_RANK_OK(broadcast(g, root ? host_in : CView(there.view()), host_out, 0));
                    OURO_RANK_CHECK(out[99] == 2, "{} was broadcast", out[99]);
                    OURO_RANK_OK(scatter(g, root ? CView(std::span<const float>{many}) : CView(there.view()),
                                         host_out, 0));
                    OURO_RANK_CHECK(out[99] == 4, "{} was scattered", out[99]);
                    OURO_RANK_OK(reduce(g, host_in, root ? host_out : there.view(), ReduceOp::sum, 0));
                    OURO_RANK_CHECK(!root || out[99] == 4, "{} is the sum", out[99]);
                    OURO_RANK_OK(gather(g, host_in, root ? View(std::span<float>{many}) : there.view(), 0));
                    OURO_RANK_CHECK(!root || many[199] == 2, "{} was gathered", many[199]);
                    OURO_EXPECT_ALL(there, 1);
                    // The reverse.
                    OURO_RANK_OK(there.fill(root ? 6 : 0));
                    OURO_RANK_OK(broadcast(g, root ? CView(there.view()) : host_in, there.view(), 0));
                    OURO_EXPECT_ALL(there, 6);
                    OURO_RANK_OK(reduce(g, there.view(), root ? there.view() : host_out, ReduceOp::sum, 0));
                    if (root) OURO_EXPECT_ALL(there, 12);
                    // Both sides are used on the root, so they must be in the same memory.
                    if (root) {
                      const Status s = broadcast(g, host_in, there.view(), 0);
                      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
                    }
                    return "";
                  }),
      "");
}

/// The second of two messages fails to allocate memory: the first one's memory must not be reused while the
/// device may write it.
TEST(GpuMessages, FailedMessageLeavesNoCopyPending) {
  OURO_NEEDS_FAKES();
  auto& fake = *new gpu::FakeGpu;  // pools of the process keep its events
  gpu::install(&fake);
  const std::shared_ptr<void> last(nullptr, [](void*) { gpu::install(nullptr); });
  auto contexts = Context::threads(1);
  ASSERT_TRUE(contexts.ok());
  Context& c = (*contexts)[0];
  constexpr std::size_t kCount = 3000, kBytes = 4 * kCount;
  Floats small, large;
  ASSERT_TRUE(small.make(c, kCount).ok() && small.fill(1).ok());
  ASSERT_TRUE(large.make(c, 1 << 20).ok());
  auto s = Stream::create(c.device());
  ASSERT_TRUE(s.ok());
  ASSERT_TRUE(rt::take_pinned(kBytes).ok());  // allocated, and returned to the pool
  fake.delay(gpu::FakeOp::copy, 50ms);
  fake.fail_next(gpu::FakeOp::alloc, Reason::resource);
  group_start();
  (void)send(c.world(), small.view(), 0, 1, *s);
  (void)send(c.world(), large.view(), 0, 2, *s);
  EXPECT_THAT(group_end(), Fails(Reason::resource));
  std::vector<std::shared_ptr<void>> all;  // takes everything that is in the pool
  for (int i = 0; i < 8; ++i) {
    all.push_back(*rt::take_pinned(kBytes));
    std::memset(all.back().get(), 7, kBytes);
  }
  EXPECT_TRUE(s->synchronize().ok());
  fake.delay(gpu::FakeOp::copy, 0ms);
  for (const auto& memory : all)
    EXPECT_EQ(std::count(static_cast<const char*>(memory.get()),
                         static_cast<const char*>(memory.get()) + kBytes, 7),
              static_cast<std::ptrdiff_t>(kBytes));
}

}  // namespace
}  // namespace ouro::test
