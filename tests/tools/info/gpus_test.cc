// Tests of what ouro-info reports about GPUs, with invented ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/device/fake/fake_gpu.h"
#include "kernels/gpu/collect.h"
#include "tools/info/report.h"

namespace ouro::info {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

/// The facts of a machine on which only the GPU interface knows of devices.
Facts facts_of(gpu::Gpu& g) {
  Facts f;
  f.cuda.why = "no CUDA driver";
  f.gpus = read_gpus(g);
  return f;
}

/// Three devices; the last one reaches no other.
gpu::FakeOptions three() {
  return {.devices = 3, .multiprocessors = 6, .peer = [](int device, int peer) {
            return device < 2 && peer < 2;
          }};
}

TEST(Gpus, PropertiesAndReachablePeersAreListed) {
  gpu::FakeGpu fake(three());
  const Facts f = facts_of(fake);
  ASSERT_EQ(f.gpus.devices.size(), 3u);
  const GpuDevice& d = f.gpus.devices[0];
  EXPECT_EQ(d.why, "");
  EXPECT_EQ(d.properties.multiprocessors, 6);
  EXPECT_EQ(d.reaches, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(f.gpus.devices[2].reaches, (std::vector<bool>{false, false, true}));
  EXPECT_THAT(uuid_text(d.properties), MatchesRegex("GPU-.{8}-.{4}-.{4}-.{4}-.{12}"));

  const std::string text = devices(f);
  EXPECT_THAT(text, HasSubstr("3 by fake"));
  EXPECT_THAT(text, HasSubstr("6 multiprocessors"));
  EXPECT_THAT(text, HasSubstr("shareable memory, IPC, stream values"));
  EXPECT_THAT(text, HasSubstr("        1   yes yes   -\n"));
  EXPECT_THAT(text, HasSubstr("        2     -   - yes\n"));

  const auto j = to_json(f, {}).at("gpus");
  EXPECT_EQ(j.at("by"), "fake");
  EXPECT_EQ(j.at("devices").at(1).at("reaches"), nlohmann::json({true, true, false}));
  EXPECT_EQ(j.at("devices").at(0).at("multiprocessors"), 6);
}

TEST(Gpus, ResidentBlocksAreReportedForEachSpinningKernel) {
  gpu::FakeGpu fake(three());
  const Facts f = facts_of(fake);
  const GpuDevice& d = f.gpus.devices.at(0);
  const auto all = gpu::all_kernels();
  EXPECT_EQ(static_cast<std::ptrdiff_t>(d.kernels.size()),
            std::count_if(all.begin(), all.end(), [](const gpu::Kernel* k) { return k->spins; }));
  for (const Residency& r : d.kernels) {
    EXPECT_EQ(r.why, "") << r.kernel;
    EXPECT_GT(r.blocks, 0) << r.kernel;
    EXPECT_GT(r.threads, 0) << r.kernel;
  }
}

TEST(Gpus, TheKernelsWithFewestAndMostBlocksAreNamed) {
  Facts f;
  f.cuda.why = "no CUDA driver";
  f.gpus.devices.resize(1);
  f.gpus.devices[0].kernels = {{.kernel = "middle", .threads = 512, .blocks = 8},
                               {.kernel = "large", .threads = 512, .blocks = 1},
                               {.kernel = "small", .threads = 512, .blocks = 16},
                               {.kernel = "broken", .why = "no code"}};
  EXPECT_THAT(devices(f), HasSubstr("resident at once: 1 block of 512 threads (large) to 16 (small)\n"
                                    "     broken: no code\n"));
}

TEST(Gpus, LostDeviceReportsItsReason) {
  gpu::FakeGpu fake(three());
  fake.lose(1);
  const Facts f = facts_of(fake);
  ASSERT_EQ(f.gpus.devices.size(), 3u);
  EXPECT_EQ(f.gpus.devices[0].why, "");
  if (f.gpus.devices[1].why.empty()) {  // its properties are still known, but its kernels are not
    for (const Residency& r : f.gpus.devices[1].kernels) EXPECT_NE(r.why, "") << r.kernel;
  }
}

TEST(Gpus, NoDeviceIsReportedWithItsReason) {
  const auto none = gpu::no_gpu("built without CUDA");
  const Facts f = facts_of(*none);
  EXPECT_THAT(devices(f), HasSubstr("none: built without CUDA"));
  EXPECT_THAT(devices(f), Not(HasSubstr("reaches")));
  EXPECT_TRUE(to_json(f, {}).at("gpus").at("devices").empty());
}

}  // namespace
}  // namespace ouro::info
