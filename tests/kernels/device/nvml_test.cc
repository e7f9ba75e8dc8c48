// Devices that a process does not see, by a management library made for the test.
#include <gtest/gtest.h>

#include "kernels/device/cuda/nvml.h"

namespace ouro::gpu::test {
namespace {

TEST(Nvml, ParsesUuidsOfGpusAndRefusesInvalidOnes) {
  const auto uuid = parse_uuid("GPU-8f6a1b2c-0d1e-2f30-4152-637485960718");
  ASSERT_TRUE(uuid);
  EXPECT_EQ(*uuid, (Uuid{0x8f, 0x6a, 0x1b, 0x2c, 0x0d, 0x1e, 0x2f, 0x30, 0x41, 0x52, 0x63, 0x74, 0x85, 0x96,
                         0x07, 0x18}));
  for (const char* wrong :
       {"", "GPU-", "MIG-8f6a1b2c-0d1e-2f30-4152-637485960718", "GPU-8f6a1b2c-0d1e-2f30-4152-63748596071",
        "GPU-8f6a1b2c-0d1e-2f30-4152-63748596071g", "GPU-8f6a1b2c00d1e-2f30-4152-637485960718"})
    EXPECT_FALSE(parse_uuid(wrong)) << wrong;
}

TEST(Nvml, FindsDevicesThatCanBeReadAndWritten) {
  const auto named = [](char last) {
    return *parse_uuid(std::string("GPU-8f6a1b2c-0d1e-2f30-4152-63748596070") + last);
  };
  EXPECT_EQ(reachable_by_nvml(named('0'), OURO_FAKE_NVML), std::vector<Uuid>{named('1')});
  EXPECT_TRUE(reachable_by_nvml(named('1'), OURO_FAKE_NVML).empty());
  EXPECT_TRUE(reachable_by_nvml(named('7'), OURO_FAKE_NVML).empty()) << "it is not among them";
  EXPECT_TRUE(reachable_by_nvml(named('0'), "libno-such-library.so").empty());
}

}  // namespace
}  // namespace ouro::gpu::test
