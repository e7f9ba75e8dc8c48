// The exchange: every rank sends its input to every other and adds up all of them in rank order, in one hop.
// Used through list.h by the host executor, for a few ranks that share no memory.
#pragma once
#include "kernels/flow/halving.h"

namespace ouro::flow {

/// With two ranks it moves as many bytes as a ring in half of the hops; with more, (n-1)/2 times as many
/// bytes, which pays off if a hop costs more than the bytes. Every rank computes all the sums, in rank order.
struct ExchangeAllReduce : Traits {
  static constexpr bool kKeeps = true, kPipelined = true, kBetweenHosts = true;

  int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) {
      for (int c = 0; c < at.rounds; ++c) step(store_input(c));
      return;
    }
    exchange(
        at.rounds,
        [&](int c) {
          for (int d = 1; d < n; ++d) step(send_widened(c, wrap(r + d, n)));
        },
        [&](int c) {
          if (n == 2 && r == 1) return step(reduce_keep(c, 0));
          step(r == 0 ? Step(keep(c)) : r == 1 ? Step(accumulate_input(c, 0)) : keep_received(c, 0));
          for (int q = 1; q < n; ++q) {
            const bool last = q == n - 1;
            if (q < r)
              step(append(c, q, kKeep));
            else if (q == r && r > 1)
              step(append_input(c, last ? kStore : kKeep));
            else if (q > r)
              step(append(c, q, last ? kStore : kKeep));
          }
        });
  }
};

}  // namespace ouro::flow
