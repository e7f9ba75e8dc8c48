// Who goes on where some have given each other up. Pure. Used by the agreement.
#pragma once
#include <array>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// What is left of `side`, ranks below `size`, once no two who are left quarrel: those who quarrel with most
/// of the others leave one by one, the highest first among equals. `quarrel(a, b)` is the same for (b, a),
/// and is asked at most twice for each pair.
template <class Quarrel>
RankSet without_quarrels(RankSet side, int size, const Quarrel& quarrel) {
  std::array<int, kMaxRanks> quarrels{};  // of each who is left, with others who are
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
