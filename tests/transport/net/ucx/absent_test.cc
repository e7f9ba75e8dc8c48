// The ucx fabric in a build without UCX: a clear error.
#include <gtest/gtest.h>

#include "transport/net/ucx/ucx.h"

namespace ouro::transport {
namespace {

TEST(UcxAbsent, FabricIsUnsupportedWithoutUcx) {
  auto made = UcxFabric::create({.rank = 0, .world = 2, .failed = [](int, Status) {}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().reason(), Reason::unsupported);
}

}  // namespace
}  // namespace ouro::transport
