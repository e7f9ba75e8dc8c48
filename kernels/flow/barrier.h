// Barriers: no rank leaves before all ranks have arrived. Used through list.h by executors, the verifier and
// the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// ceil(log2 n) exchanges of empty messages at distances 1, 2, 4, ...: after distance d, a rank knows that
/// the 2d ranks up to and including itself have arrived. Its one chunk is empty.
struct DisseminationBarrier : Traits {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    for (int d = 1; d < at.size; d *= 2) {
      step(send(0, wrap(at.rank + d, at.size)));
      step(recv(0, wrap(at.rank - d, at.size)));
    }
  }
};

struct DirectBarrier : Traits {
  static constexpr bool kStaging = true;
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size > 1) step(barrier());
  }
};

}  // namespace ouro::flow
