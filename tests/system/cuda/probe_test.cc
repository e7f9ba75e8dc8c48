// The probe on emulated devices: a benign one, and harsh ones, each of which changes an answer.
#include "tests/system/cuda/probe.h"

#include <gtest/gtest.h>

#include <string_view>

#include "kernels/device/fake/fake_gpu.h"

namespace ouro::gpu {
namespace {

/// Asks a new device, which is never destroyed because some of its streams may still be blocked.
std::string ask(std::string_view name, FakeHarsh harsh, bool* good) {
  auto* const fake = new FakeGpu({.harsh = harsh});
  install(fake);
  for (const Question& q : questions()) {
    if (name != q.name) continue;
    const auto answer = q.ask(*fake, 0, std::chrono::milliseconds(300));
    install(nullptr);
    *good = answer.ok() && answer->good;
    return answer.ok() ? answer->text : answer.status().message();
  }
  install(nullptr);
  return "no such question";
}

struct Case {
  const char* name;
  FakeHarsh harsh;  ///< the behaviour that makes the answer "no"
};
std::ostream& operator<<(std::ostream& os, const Case& c) { return os << c.name; }
class Probe : public testing::TestWithParam<Case> {};

TEST_P(Probe, DetectsTheRestrictionOfADevice) {
  bool good = false;
  const std::string kind = ask(GetParam().name, {}, &good);
  EXPECT_TRUE(good) << kind;
  const std::string harsh = ask(GetParam().name, GetParam().harsh, &good);
  EXPECT_FALSE(good) << harsh;
}

const Case kCases[] = {
    {"first-launch", {.lazy_loading = true}},
    {"waiting-streams", {.connections = 2}},
    {"waiting-staged-copies", {.connections = 2}},
    {"waiting-device-copies", {.connections = 2}},
    {"queues-of-priorities", {.connections = 32}},
    {"queues-of-new-streams", {.connections = 32}},
    {"queues-after-many-streams", {.connections = 32}},
    {"allocation", {.allocation_waits = true}},
    {"pinning", {.allocation_waits = true}},
};
INSTANTIATE_TEST_SUITE_P(All, Probe, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

TEST(ProbeAlone, UnrestrictedFakePassesTheseProbes) {
  for (const char* name : {"order-of-words", "device-words", "spinning-kernels", "small-pageable-copies",
                           "large-pageable-copies", "pageable-copies-beside-copies",
                           "allocation-beside-a-kernel", "pinning-beside-a-kernel", "captured-words"}) {
    bool good = false;
    const std::string text = ask(name, {}, &good);
    EXPECT_TRUE(good) << name << ": " << text;
  }
  bool good = false;
  EXPECT_TRUE((ask("loaded-launch", {.lazy_loading = true}, &good), good)) << "it is loaded before";
}

TEST(ProbeAlone, DeviceThatRefusesWordsInItsMemoryIsDetected) {
  install(new FakeGpu({.device_words = false}));
  for (const Question& q : questions()) {
    if (q.name != std::string_view("device-words")) continue;
    const auto answer = q.ask(gpu(), 0, std::chrono::milliseconds(300));
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_FALSE(answer->good) << answer->text;
  }
  install(nullptr);
}

TEST(ProbeAlone, ThreadsDoNotStallOnAFake) {
  install(new FakeGpu(FakeOptions{}));
  for (const Question& q : thread_questions()) {
    const auto answer = q.ask(gpu(), 0, std::chrono::seconds(20));
    ASSERT_TRUE(answer.ok()) << q.name << ": " << answer.status().message();
    EXPECT_TRUE(answer->good) << q.name << ": " << answer->text;
  }
  install(nullptr);
}

/// One hardware queue: a stream that waits holds up those of the other threads. (Records of events alone, as
/// in "threads-wait", are held up by nobody on emulated devices.)
TEST(ProbeAlone, ThreadsStallWhereStreamsShareAQueue) {
  for (const char* name : {"threads-copy-and-wait", "threads-copy-call-and-wait", "eight-threads-words"}) {
    bool good = true;
    const std::string text = ask(name, {.connections = 1}, &good);
    EXPECT_FALSE(good) << name << ": " << text;
  }
}

/// Emulated devices wait for all work before memory is released, as CUDA may.
TEST(ProbeAlone, FakesWaitForAllWorkBeforeARelease) {
  for (const char* name : {"release", "unpinning"}) {
    bool good = true;
    const std::string text = ask(name, {}, &good);
    EXPECT_FALSE(good) << name << ": " << text;
  }
}

}  // namespace
}  // namespace ouro::gpu
