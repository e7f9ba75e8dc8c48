// Choices by figures. See choose.h.
#include "runtime/calibration/choose.h"

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

}  // namespace ouro::rt
