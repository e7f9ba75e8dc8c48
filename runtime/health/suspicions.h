// Chooses the members that continue if some suspect each other. Pure. Used by the agreement.
#pragma once
#include <array>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// Removes ranks from `side`, a set of ranks below `size`, until no two of the rest suspect each other: one
/// by one those with most mutual suspicions among the rest, the highest first among equals. `suspect` says
/// whether two ranks suspect each other; it is called at most twice for each pair.
template <class Suspect>
RankSet without_mutual_suspicion(RankSet side, int size, const Suspect& suspect) {
  std::array<int, kMaxRanks> suspicions{};  // of each remaining rank, with other remaining ranks
  const auto of = [&](int r) -> int& { return suspicions[static_cast<std::size_t>(r)]; };
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < a && side.has(a); ++b)
      if (side.has(b) && suspect(a, b)) ++of(a), ++of(b);
  for (;;) {
    int worst = -1, most = 0;
    for (int r = 0; r < size; ++r)
      if (side.has(r) && of(r) > 0 && of(r) >= most) worst = r, most = of(r);
    if (worst < 0) return side;
    side.remove(worst);
    for (int o = 0; o < size; ++o)
      if (side.has(o) && suspect(worst, o)) --of(o);
  }
}

}  // namespace ouro::rt
