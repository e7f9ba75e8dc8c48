// Choices based on figures. See choose.h.
#include "runtime/calibration/choose.h"

#include <algorithm>
#include <chrono>

namespace ouro::rt {

using kernels::CopyKind, kernels::kCopyKinds, kernels::kCopySizes;

kernels::CopyKinds copy_kinds_by(const Calibration& c) {
  kernels::CopyKinds kinds = kernels::kDefaultCopyKinds;
  if (!c.known()) return kinds;
  for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
    const auto& costs = c.farthest().copies[s];
    const CopyCost& built_in = costs[static_cast<std::size_t>(kinds[s])];
    if (!built_in.known()) continue;
    std::uint32_t least = built_in.both() - built_in.both() / 5;
    for (std::size_t k = 0; k < kCopyKinds; ++k)
      if (costs[k].known() && costs[k].both() < least)
        least = costs[k].both(), kinds[s] = static_cast<CopyKind>(k);
  }
  return kinds;
}

Patience patience_by(const Calibration& c, bool own_cores) {
  constexpr std::uint32_t kTimes = 4, kFewest = 4, kMost = 100;
  constexpr std::chrono::microseconds kLongest{1000};
  Patience p = own_cores ? Patience::with_own_cores() : Patience{};
  if (!c.known()) return p;
  const auto spin = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::nanoseconds(std::uint64_t{kTimes} * c.wake));
  if (own_cores) p.spin = std::clamp(spin, p.spin, kLongest);
  if (c.pause > 0) {
    std::uint32_t ns = kTimes * c.farthest().handoff;
    if (c.context_switch > 0) ns = std::min(ns, c.context_switch);
    p.polls = static_cast<int>(std::clamp(ns / c.pause, kFewest, kMost));
  }
  return p;
}

std::optional<std::size_t> cached_bytes(const Calibration& c, std::size_t caches) {
  if (c.cache_kib == 0) return std::nullopt;
  return (std::size_t{c.cache_kib} << 10) * std::max<std::size_t>(caches, 1);
}

bool shares_caches(const Calibration& c) {
  constexpr std::uint32_t kWithinOneCache = 120;  // nanoseconds; between caches it takes 160 and more
  return !c.known() || c.pair[0].distance != Distance::cache || c.pair[0].handoff < kWithinOneCache;
}

}  // namespace ouro::rt
