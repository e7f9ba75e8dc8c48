// Flows over links without relaying: every block goes directly from its owner to its reader. Used through
// list.h by executors, the verifier and the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// Ranks r and k-r (modulo n) swap their blocks in exchange k. Unlike shifts by a distance, this reads the
/// block for a peer just before the block from that peer overwrites it, so it is correct in place, for any n.
struct PairwiseAllToAll : Traits {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    for (int k = 0; k < at.size; ++k) {
      const int peer = wrap(k - at.rank, at.size);
      if (peer == at.rank) {
        step(copy(peer));
      } else {
        step(send(peer, peer));
        step(recv(peer, peer));
      }
    }
  }
};

struct LinearGather : Traits {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.rank != at.root) return step(send(at.rank, at.root));
    step(copy(at.rank));  // first: the root's input may occupy the place of another block in the output
    for (int d = 1; d < at.size; ++d) {
      const int from = wrap(at.root + d, at.size);
      step(recv(from, from));
    }
  }
};

struct LinearScatter : Traits {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.rank != at.root) return step(recv(at.rank, at.root));
    for (int d = 1; d < at.size; ++d) {
      const int to = wrap(at.root + d, at.size);
      step(send(to, to));
    }
    step(copy(at.rank));  // last: the root's output may occupy the place of another block in the input
  }
};

}  // namespace ouro::flow
