// Configurations of all versions. See config.h.
#include "api/nccl/config.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstring>

#include "api/nccl/error.h"
#include "api/nccl/variables.h"
#include "runtime/core/log.h"

namespace ouro::nccl {
namespace {

constexpr std::size_t kSmallest = 24;  // size in 2.14, which had `blocking` as its only field

/// X(field, since, lowest, highest): the integer fields, the version that introduced each, and its range.
// clang-format off
#define OURO_CONFIG_INTEGERS(X)                                                                            \
  X(blocking, 21400, 0, 1)             X(cgaClusterSize, 21700, 0, 8)       X(minCTAs, 21700, 1, INT_MAX)  \
  X(maxCTAs, 21700, 1, INT_MAX)        X(splitShare, 21800, 0, 1)           X(trafficClass, 22600, 0, 255) \
  X(collnetEnable, 22700, 0, 1)        X(CTAPolicy, 22700, 0, 3)            X(shrinkShare, 22700, 0, 1)    \
  X(nvlsCTAs, 22700, 1, INT_MAX)       X(nChannelsPerNetPeer, 22800, 1, INT_MAX)                           \
  X(nvlinkCentricSched, 22800, 0, 1)   X(graphUsageMode, 22900, 0, 2)       X(numRmaCtx, 22900, 1, INT_MAX)\
  X(maxP2pPeers, 23003, 1, INT_MAX)    X(graphStreamOrdering, 23007, 0, 1)
// clang-format on

/// Reads the fields that the caller's version has; the others are undefined. Versions before 2.9, which wrote
/// four digits, have no configurations.
ncclConfig_t known_part(const ncclConfig_t* from, std::size_t size, unsigned version) {
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&c, from, std::min(size, sizeof c));
  const auto absent = [&](std::size_t offset, std::size_t bytes, unsigned since) {
    return offset + bytes > size || version < since;
  };
#define OURO_X(field, since, lowest, highest) \
  if (absent(offsetof(ncclConfig_t, field), sizeof c.field, since)) c.field = NCCL_CONFIG_UNDEF_INT;
  OURO_CONFIG_INTEGERS(OURO_X)
#undef OURO_X
  if (absent(offsetof(ncclConfig_t, netName), sizeof c.netName, 21700)) c.netName = nullptr;
  if (absent(offsetof(ncclConfig_t, commName), sizeof c.commName, 22700)) c.commName = nullptr;
  return c;
}

}  // namespace

Config default_config() {
  Config c;
  if (const auto blocking = flag("NCCL_COMM_BLOCKING", c.blocking); blocking.ok()) c.blocking = *blocking;
  if (const auto blocks = number("NCCL_MAX_CTAS"); blocks.ok() && *blocks && **blocks > 0)
    c.max_ctas = static_cast<int>(std::min<long long>(**blocks, INT_MAX));
  return c;
}

ncclResult_t parse(const char* function, const ncclConfig_t* from, const Config& fallback, Config* out) {
  *out = fallback;
  if (!from) return ncclSuccess;
  std::size_t size = 0;  // nothing beyond `size` is read before it is known to exist
  std::memcpy(&size, from, sizeof size);
  if (size < kSmallest)
    return invalid_argument(nullptr, function,
                            "a config of {} bytes; expected {} or more (use NCCL_CONFIG_INITIALIZER)", size,
                            kSmallest);
  if (from->magic != NCCL_API_MAGIC)
    return invalid_argument(nullptr, function,
                            "the config's magic number is {:#x}; expected {:#x} (use "
                            "NCCL_CONFIG_INITIALIZER)",
                            from->magic, NCCL_API_MAGIC);
  const ncclConfig_t c = known_part(from, size, from->version);
#define OURO_X(field, since, lowest, highest)                                                               \
  if (c.field != NCCL_CONFIG_UNDEF_INT && (c.field < (lowest) || c.field > (highest)))                      \
    return invalid_argument(nullptr, function, "config field " #field " is {}; expected {} to {}", c.field, \
                            lowest, highest);
  OURO_CONFIG_INTEGERS(OURO_X)
#undef OURO_X
  if (c.minCTAs != NCCL_CONFIG_UNDEF_INT && c.maxCTAs != NCCL_CONFIG_UNDEF_INT && c.minCTAs > c.maxCTAs)
    return invalid_argument(nullptr, function, "config fields minCTAs {} and maxCTAs {}; expected min <= max",
                            c.minCTAs, c.maxCTAs);
  if (c.blocking != NCCL_CONFIG_UNDEF_INT && !variable("NCCL_COMM_BLOCKING")) out->blocking = c.blocking != 0;
  if (c.maxCTAs != NCCL_CONFIG_UNDEF_INT && !variable("NCCL_MAX_CTAS")) out->max_ctas = c.maxCTAs;
  if (c.commName) out->name = c.commName;
  static std::atomic<bool> logged{false};
  bool unused = c.netName != nullptr;
#define OURO_X(field, since, lowest, highest)                                             \
  unused = unused || (c.field != NCCL_CONFIG_UNDEF_INT &&                                 \
                      offsetof(ncclConfig_t, field) != offsetof(ncclConfig_t, maxCTAs) && \
                      offsetof(ncclConfig_t, field) > offsetof(ncclConfig_t, blocking));
  OURO_CONFIG_INTEGERS(OURO_X)
#undef OURO_X
  if (unused && !logged.exchange(true))
    OURO_INFO(INIT,
              "of a communicator's config only blocking, maxCTAs and commName mean something here; the other "
              "fields, which tune NCCL, are accepted and unused");
  return ncclSuccess;
}

}  // namespace ouro::nccl
