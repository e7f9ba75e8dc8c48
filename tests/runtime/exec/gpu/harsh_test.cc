// Operations on a fake that does always what CUDA does at times: loading and allocating that wait for all
// work, a context on each device that is asked about.
#include <gtest/gtest.h>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

constexpr auto kPatience = 1000ms;  // of what waits in vain; what is right waits for nothing
constexpr std::size_t kCount = 3000;

/// A fake for the life of a test. It is never destroyed: pools of the process keep events of it.
class Harsh : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "SKIP (only fake devices can be told what they do)";
  }
  void TearDown() override { gpu::install(nullptr); }
  gpu::FakeGpu& install(gpu::FakeOptions o) {
    auto* fake = new gpu::FakeGpu(std::move(o));
    gpu::install(fake);
    return *fake;
  }
};
class HarshPaths : public Harsh, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, HarshPaths, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

/// A rank's room and stream.
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

/// An all-reduce that one rank enqueues in full before the next, by one thread: whatever a later rank does
/// that waits for the device waits for ever.
void expect_in_turn(const std::string& path) {
  const ForcedPath forced(path);
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 5s;
  auto contexts = thread_contexts(3, o);
  std::vector<Seat> seats(3);
  for (std::size_t r = 0; r < 3; ++r) seats[r].make(contexts[r]);
  std::vector<Work> works;
  for (std::size_t r = 0; r < 3; ++r) {
    const View v = seats[r].data.view();
    auto w = all_reduce(contexts[r].world(), v, v, ReduceOp::sum, seats[r].stream);
    ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
    works.push_back(*w);
  }
  for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(seats[r].data.expect(3), "");
    EXPECT_EQ(only_ran(contexts[r].world(), path), "");
  }
}

TEST_P(HarshPaths, NoKernelIsLoadedWhileOthersWait) {
  auto& fake = install({.multiprocessors = 16, .harsh = {.lazy_loading = true, .patience = kPatience}});
  expect_in_turn(GetParam());
  EXPECT_EQ(fake.stalls(), 0);
}

TEST_F(Harsh, ARankUsesNoDeviceButItsOwn) {
  auto& fake = install({.devices = 8, .multiprocessors = 16});
  auto contexts = thread_contexts(2);
  EXPECT_EQ(contexts[1].device().index, 1);
  EXPECT_EQ(fake.contexts(), 2);
}

}  // namespace
}  // namespace ouro::test
