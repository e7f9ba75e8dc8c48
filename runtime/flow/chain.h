// Chain flows: reductions along the line 0, 1, ..., n-1, which is what the canonical contract asks for.
// Used through list.h by executors, the verifier and the simulator.
#pragma once
#include "runtime/flow/traits.h"

namespace ouro::flow {

/// Takes a finished sum that is still wide, rounds and finishes it into the output.
OURO_HD constexpr Step recv_total(int c, int from) { return {kRecv | kWideIn | kStore, c, from}; }

/// Sums travel up 0 -> n-1 while finished chunks travel down n-1 -> 0: a ring's bandwidth in both directions.
struct ChainAllReduce : Traits {
  static constexpr bool kPipelined = true;
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int r = at.rank, last = at.size - 1;
    if (last == 0) {
      for (int c = 0; c < at.rounds; ++c) step(store_input(c));
    } else if (r == last) {
      for (int c = 0; c < at.rounds; ++c) step(reduce_keep_forward(c, r - 1, r - 1));
    } else if (r == 0) {
      pipeline(
          at.rounds, kLagPerHop * last, [&](int c) { step(lift(c, 1)); }, [&](int c) { step(recv(c, 1)); });
    } else {
      pipeline(
          at.rounds, kLagPerHop * (last - r), [&](int c) { step(reduce_forward(c, r - 1, r + 1)); },
          [&](int c) { step(forward(c, r + 1, r - 1)); });
    }
  }
};

/// Up the chain; rank n-1 passes the total, wide, to the root, which alone rounds it. One chunk a round.
struct ChainReduce : Traits {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int r = at.rank, last = at.size - 1;
    if (last == 0) return step(store_input(0));
    const int next = r == last ? at.root : r + 1;
    if (r == 0) {
      step(lift(0, next));
    } else if (r == last && r == at.root) {
      step(reduce_keep(0, r - 1));
    } else {
      step(reduce_forward(0, r - 1, next));
    }
    if (r == at.root && r != last) step(recv_total(0, last));
  }
};

}  // namespace ouro::flow
