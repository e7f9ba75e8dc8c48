// The calls of the driver that gpu_calls.h states are those that cuda.cc makes: it runs here over a driver
// whose functions are counted.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/counting_gpu.h"
#include "tests/kernels/device/driver_stub.h"

namespace ouro::gpu {
namespace {

using test::driver_stub;

void nothing(void*) {}

class CudaCalls : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string why;
    Gpu* const real = cuda(&why);
    ASSERT_NE(real, nullptr) << why;
    gpu_ = std::make_unique<CountingGpu>(*real);
    driver_stub = {};
    ASSERT_TRUE(gpu_->properties(0).ok());  // makes the context, and asks for what is kept
    driver_stub = {.context_current = GetParam()};
  }
  /// Expects that a call makes the calls of the driver that are stated for it.
  void expect_stated(const char* what, const std::function<bool(Gpu&)>& call) {
    const CallCounts before = gpu_->mine();
    const std::uint64_t made = driver_stub.calls;
    EXPECT_TRUE(call(*gpu_)) << what;
    const CallCounts stated = gpu_->mine() - before;
    EXPECT_EQ(driver_stub.calls - made, GetParam() ? stated.driver : stated.driver_calls()) << what;
    seen_ += stated;
  }

  const Stream stream_{0, &driver_stub};
  const Event event_{&driver_stub};
  std::unique_ptr<CountingGpu> gpu_;
  CallCounts seen_;
};
INSTANTIATE_TEST_SUITE_P(Context, CudaCalls, testing::Bool(),
                         [](const auto& info) { return info.param ? "current" : "none"; });

TEST_P(CudaCalls, AreThoseThatTheTableStates) {
  const auto s = stream_;
  const auto e = event_;
  std::uint64_t memory = 0;
  const Kernel kernel{.name = "a kernel", .device = &driver_stub, .arg_bytes = 8};
  const std::vector<MemOp> words(130, {MemOp::Kind::write, 1, &memory});
  expect_stated("launch", [&](Gpu& g) { return g.launch(kernel, {}, &memory, s).ok(); });
  for (const std::size_t many : {1, 64, 65, 130})
    expect_stated("batch", [&](Gpu& g) { return g.enqueue({words.data(), many}, s).ok(); });
  expect_stated("record", [&](Gpu& g) { return g.record(e, s).ok(); });
  expect_stated("wait", [&](Gpu& g) { return g.wait(s, e).ok(); });
  expect_stated("copy", [&](Gpu& g) { return g.copy(&memory, &memory, 8, s).ok(); });
  expect_stated("set", [&](Gpu& g) { return g.set(&memory, 0, 8, s).ok(); });
  expect_stated("call_host", [&](Gpu& g) { return g.call_host(s, nothing, nullptr).ok(); });
  expect_stated("launch_graph", [&](Gpu& g) { return g.launch(Graph{&memory}, s).ok(); });
  for (const bool ready : {true, false}) {
    driver_stub.ready = ready;
    expect_stated("query", [&](Gpu& g) { return *g.query(s) == ready; });
    expect_stated("query of an event", [&](Gpu& g) { return *g.query(e) == ready; });
  }
  expect_stated("capturing", [&](Gpu& g) { return g.capturing(s).ok(); });
  expect_stated("capturing", [&](Gpu& g) { return g.capturing({0, kLegacyStream}).ok(); });
  expect_stated("check_context", [&](Gpu& g) { return g.check_context(s).ok(); });
  expect_stated("check_context", [&](Gpu& g) { return g.check_context({0, kThreadStream}).ok(); });
  const auto kind = [&] { return gpu_->pointer(&memory)->kind; };
  expect_stated("pointer", [&](Gpu&) { return kind() == MemoryKind::device; });
  driver_stub.legacy_memory = false;
  expect_stated("pointer to memory of cuMemMap", [&](Gpu&) { return kind() == MemoryKind::device; });
  driver_stub.device_memory = false;
  expect_stated("pointer to memory of the host", [&](Gpu&) { return kind() == MemoryKind::host; });
  expect_stated("synchronize", [&](Gpu& g) { return g.synchronize(s).ok(); });
  expect_stated("synchronize with an event", [&](Gpu& g) { return g.synchronize(e).ok(); });
  expect_stated("elapsed", [&](Gpu& g) { return g.elapsed_ms(e, e).ok(); });
  expect_stated("current_device", [&](Gpu& g) { return g.current_device().ok(); });
  expect_stated("set_current_device", [&](Gpu& g) { return g.set_current_device(0).ok(); });
  expect_stated("scope", [&](Gpu& g) { return g.scope(0).ok(); });
  expect_stated("properties", [&](Gpu& g) { return g.properties(0).ok(); });
  for (std::size_t i = 0; i < kGpuCalls; ++i)
    EXPECT_EQ(seen_.calls[i] == 0, kCallTerms[i].cost == CallClass::setup)
        << kCallTerms[i].name << ": every kind whose calls are stated is checked here";
}

/// The driver's own words for such a stream are those for any wrong handle.
TEST_P(CudaCalls, StreamsOfOtherContextsAreRefusedByName) {
  int other = 0;
  driver_stub.stream_context = &other;
  const Status of_another = gpu_->check_context(stream_);
  EXPECT_EQ(of_another.reason(), Reason::invalid);
  EXPECT_NE(of_another.message().find("another context"), std::string::npos) << of_another.message();
  driver_stub.stream_context = nullptr;
  driver_stub.green_context = &other;
  const Status green = gpu_->check_context(stream_);
  EXPECT_NE(green.message().find("a green context"), std::string::npos) << green.message();
}

TEST_P(CudaCalls, RaiseTheStackAndNeverLowerIt) {
  EXPECT_TRUE(gpu_->reserve_stack(0, 4000).ok());
  EXPECT_EQ(driver_stub.stack, 4000u);
  const std::uint64_t made = driver_stub.calls;
  EXPECT_TRUE(gpu_->reserve_stack(0, 3000).ok());
  EXPECT_EQ(driver_stub.stack, 4000u);
  EXPECT_TRUE(gpu_->reserve_stack(0, 4000).ok());
  const std::uint64_t unchanged = driver_stub.calls - made;
  EXPECT_TRUE(gpu_->reserve_stack(0, 4001).ok());
  EXPECT_EQ(2 * (driver_stub.calls - made - unchanged), unchanged + 2) << "one call more, which may wait";
}

}  // namespace
}  // namespace ouro::gpu
