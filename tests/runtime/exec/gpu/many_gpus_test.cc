// Ranks that are threads with a GPU each, on emulated devices that always do what a driver does at times:
// nothing that an operation needs waits for a device on which another rank's kernel spins.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

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

class ManyGpus : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { OURO_NEEDS_FAKES(); }
  void TearDown() override { gpu::install(nullptr); }
  gpu::FakeGpu& install(gpu::FakeOptions o) {
    o.devices = kRanks;
    o.multiprocessors = 16;
    auto* fake = new gpu::FakeGpu(std::move(o));  // never destroyed: pools of the process keep its events
    gpu::install(fake);
    return *fake;
  }
};
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

}  // namespace
}  // namespace ouro::test
