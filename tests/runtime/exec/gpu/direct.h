// What the tests of messages by UCX from and to memory of GPUs share.
#pragma once
#include <cstddef>
#include <vector>

#include "transport/net/ucx/ucx.h"

namespace ouro::test {

#define OURO_NEEDS_UCX()                                         \
  if (const auto usable = transport::ucx_usable(); !usable.ok()) \
  GTEST_SKIP() << "no UCX: " << usable.message()

/// Bytes none of which can be taken for another of its neighbourhood.
inline std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> v(bytes);
  for (std::size_t i = 0; i < bytes; ++i) v[i] = static_cast<std::byte>(i * 7 + (i >> 9) * 13 + seed);
  return v;
}

}  // namespace ouro::test
