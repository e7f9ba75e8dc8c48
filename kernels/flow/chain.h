// Chain flows: reductions along the line 0, 1, ..., n-1, as the canonical contract requires. Used through
// list.h by executors, the verifier and the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// Receives a finished sum that is still wide, rounds and finishes it into the output.
OURO_HD constexpr auto recv_total(int c, int from) { return StepOf<kRecv | kPartialIn | kStore>(c, from); }

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
          at.rounds, kLagPerHop * last, [&](int c) { step(send_widened(c, 1)); },
          [&](int c) { step(recv(c, 1)); });
    } else {
      pipeline(
          at.rounds, kLagPerHop * (last - r), [&](int c) { step(reduce_forward(c, r - 1, r + 1)); },
          [&](int c) { step(forward(c, r + 1, r - 1)); });
    }
  }
};

/// Sums travel up the chain; rank n-1 passes the total, wide, to the root, and only the root rounds it. A
/// root before the end of the chain runs ahead by as many chunks as there are hops from it round to itself,
/// so that the chain is never empty.
struct ChainReduce : Traits {
  static constexpr bool kPipelined = true;
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int r = at.rank, last = at.size - 1, next = r == last ? at.root : r + 1;
    const auto up = [&](int c) {
      if (last == 0) return step(store_input(c));
      if (r == 0) return step(send_widened(c, next));
      if (r == last && r == at.root) return step(reduce_keep(c, r - 1));
      step(reduce_forward(c, r - 1, next));
    };
    if (r == at.root && r != last) {
      pipeline(at.rounds, last - r + 1, up, [&](int c) { step(recv_total(c, last)); });
    } else {
      for (int c = 0; c < at.rounds; ++c) up(c);
    }
  }
};

/// One reduction up the chain for each block; rank n-1 passes each total, wide, to its owner.
struct ChainReduceScatter : Traits {
  static constexpr bool kPipelined = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank, last = n - 1;
    const auto up = [&](int c) {
      const int owner = c % n;
      if (last == 0) return step(store_input(c));
      if (r == 0) return step(send_widened(c, 1));
      if (r == last && r == owner) return step(reduce_keep(c, r - 1));
      step(reduce_forward(c, r - 1, r == last ? owner : r + 1));
    };
    pipeline(at.rounds * n, last - r + 1, up, [&](int c) {
      if (r != last && c % n == r) step(recv_total(c, last));
    });
  }
};

}  // namespace ouro::flow
