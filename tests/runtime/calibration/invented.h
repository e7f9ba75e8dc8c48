// Records of machines that there are not. Used by the tests of calibration.
#pragma once
#include "runtime/calibration/record.h"

namespace ouro::rt {

/// Two cores of one cache and two of one node, with every figure, no two alike.
inline Calibration invented_record() {
  Calibration c{};
  c.pairs = 2, c.context_switch = 1200;
  for (std::uint32_t i = 0; i < c.pairs; ++i) {
    PairCosts& p = c.pair[i];
    p.distance = i == 0 ? Distance::cache : Distance::node;
    p.cpus[0] = 0, p.cpus[1] = static_cast<std::int32_t>(i + 1);
    p.handoff = 50 + 150 * i;
    for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
      const auto base = static_cast<std::uint32_t>(kernels::kCopySizes[s] / 10 * (i + 1));
      for (std::uint32_t k = 0; k < kernels::kCopyKinds; ++k) p.copies[s][k] = {base + k, base + 10 + k};
      p.pull[s] = base + 1000, p.pull_huge[s] = base + 500;
    }
  }
  return c;
}

}  // namespace ouro::rt
