// Recursive halving and doubling: log2(n) exchanges each way, with the same number of bytes as the ring. An
// exchange still sends one message per chunk, with two in flight at a time, so small operations among many
// ranks are better served by the tree. Used through list.h by executors, the verifier and the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// Calls give(0..count-1) and take(0..count-1) for two ranks that swap chunks. Two chunks are in flight at a
/// time, which is all that two slots can hold.
template <class Give, class Take>
OURO_HD void exchange(int count, Give&& give, Take&& take) {
  give(0);
  OURO_ROLLED
  for (int i = 0; i < count; ++i) {
    if (i + 1 < count) give(i + 1);
    take(i);
  }
}

/// The first p ranks, where p is the largest power of two <= n, halve and double over p chunks. Rank p+i
/// first sends its input to rank i and receives the result from it at the end. Each chunk's sum is finished
/// by one rank, so all ranks get the same bits.
struct HalvingAllReduce : Traits {
  static constexpr bool kCanonical = false, kKeeps = true;
  OURO_HD int chunks(Place at) const {
    int p = 1;
    while (2 * p <= at.size) p *= 2;
    return p;
  }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int p = chunks(at), r = at.rank, twin = r + p;
    if (at.size == 1) return step(store_input(0));
    if (r >= p) {
      for (int c = 0; c < p; ++c) step(send_widened(c, r - p));
      for (int c = 0; c < p; ++c) step(recv(c, r - p));
      return;
    }
    bool summed = twin < at.size;  // whether my part is in the accumulators (or only in the input)
    if (summed) {
      for (int c = 0; c < p; ++c) step(accumulate_input(c, twin));
    }
    int lo = 0;  // first of the p/half chunks that my group and I still work on
    for (int half = p / 2; half > 0; half /= 2) {
      const int peer = r ^ half, mine = lo + (r & half), theirs = lo + (peer & half);
      const bool last = half == 1;
      if (summed) {
        exchange(
            half, [&](int i) { step(send_partial(theirs + i, peer)); },
            [&](int i) {
              if (last) return step(accumulate_store(mine + i, peer));
              step(accumulate(mine + i, peer));
            });
      } else {
        exchange(
            half, [&](int i) { step(send_widened(theirs + i, peer)); },
            [&](int i) {
              if (last) return step(reduce_keep(mine + i, peer));
              step(accumulate_input(mine + i, peer));
            });
      }
      lo = mine;
      summed = true;
    }
    for (int half = 1; half < p; half *= 2) {
      const int peer = r ^ half, mine = r & ~(half - 1), theirs = peer & ~(half - 1);
      exchange(
          half, [&](int i) { step(send_result(mine + i, peer)); },
          [&](int i) { step(recv(theirs + i, peer)); });
    }
    if (twin < at.size) {
      for (int c = 0; c < p; ++c) step(send_result(c, twin));
    }
  }
};

}  // namespace ouro::flow
