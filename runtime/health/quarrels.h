// Chooses the members that go on if some have given each other up. Pure. Used by the agreement.
#pragma once
#include <array>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// Removes ranks from `side`, a set of ranks below `size`, until no two of the rest quarrel: one by one those
/// that quarrel with most of the rest, the highest first among equals. `quarrel` is symmetric and is called
/// at most twice for each pair.
template <class Quarrel>
RankSet without_quarrels(RankSet side, int size, const Quarrel& quarrel) {
  std::array<int, kMaxRanks> quarrels{};  // of each remaining rank, with other remaining ranks
  const auto of = [&](int r) -> int& { return quarrels[static_cast<std::size_t>(r)]; };
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < a && side.has(a); ++b)
      if (side.has(b) && quarrel(a, b)) ++of(a), ++of(b);
  for (;;) {
    int worst = -1, most = 0;
    for (int r = 0; r < size; ++r)
      if (side.has(r) && of(r) > 0 && of(r) >= most) worst = r, most = of(r);
    if (worst < 0) return side;
    side.remove(worst);
    for (int o = 0; o < size; ++o)
      if (side.has(o) && quarrel(worst, o)) --of(o);
  }
}

}  // namespace ouro::rt
