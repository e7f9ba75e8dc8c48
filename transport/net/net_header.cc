// Checksums of frames between hosts. See net_header.h.
#include "transport/net/net_header.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::transport {

std::uint32_t head_check_of(NetHeader h) {
  h.head_check = 0;
  const auto sum = static_cast<std::uint32_t>(XXH3_64bits(&h, sizeof h));
  return sum == 0 ? 1 : sum;
}

std::uint64_t check_of(NetHeader h, const std::byte* payload) {
  h.check = h.head_check = 0;
  const std::uint64_t sum = XXH3_64bits_withSeed(payload, h.bytes, XXH3_64bits(&h, sizeof h));
  return sum == 0 ? 1 : sum;
}

}  // namespace ouro::transport
