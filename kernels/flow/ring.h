// Ring flows: every rank communicates with its two neighbours only. Bandwidth-optimal over links; latency
// grows with n. Used through list.h by executors, the verifier and the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// The sum of chunk c starts at rank c, is complete at rank c-1, and is then passed round the ring once more.
struct RingAllReduce : Traits {
  static constexpr bool kCanonical = false;  // starts at rank c, so the association depends on the chunk
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, prev = wrap(at.rank - 1, n), next = wrap(at.rank + 1, n);
    if (n == 1) return step(store_input(0));
    int c = at.rank;
    auto back = [&] { return c = wrap(c - 1, n); };
    step(send_widened(c, next));
    for (int i = 2; i < n; ++i) step(reduce_forward(back(), prev, next));
    step(reduce_keep_forward(back(), prev, next));
    for (int i = 2; i < n; ++i) step(forward(back(), prev, next));
    step(recv(back(), prev));
  }
};

/// The sum of chunk c starts at rank c+1 and is complete at rank c.
struct RingReduceScatter : Traits {
  static constexpr bool kCanonical = false;
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, prev = wrap(at.rank - 1, n), next = wrap(at.rank + 1, n);
    if (n == 1) return step(store_input(0));
    int c = prev;
    auto back = [&] { return c = wrap(c - 1, n); };
    step(send_widened(c, next));
    for (int i = 2; i < n; ++i) step(reduce_forward(back(), prev, next));
    step(reduce_keep(back(), prev));
  }
};

struct RingAllGather : Traits {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, prev = wrap(at.rank - 1, n), next = wrap(at.rank + 1, n);
    if (n == 1) return step(copy(0));
    int c = at.rank;
    auto back = [&] { return c = wrap(c - 1, n); };
    step(send(c, next));
    step(copy(c));
    for (int i = 2; i < n; ++i) step(forward(back(), prev, next));
    step(recv(back(), prev));
  }
};

/// One chunk per round along the line root, root+1, ..., root-1; rounds follow each other without a gap.
struct ChainBroadcast : Traits {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, prev = wrap(at.rank - 1, n), next = wrap(at.rank + 1, n);
    if (at.rank == at.root) {
      if (n > 1) step(send(0, next));  // before the copy: the others wait for it
      step(copy(0));
    } else if (next == at.root) {
      step(recv(0, prev));
    } else {
      step(forward(0, prev, next));
    }
  }
};

}  // namespace ouro::flow
