// Binomial-tree flows: log2(n) hops, for small messages among many ranks. Rounds are pipelined through the
// tree. Used through list.h by executors, the verifier and the simulator.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// The binomial tree over ranks counted from the root: clearing the lowest set bit of v gives its parent, and
/// its children are v + 2^k below that bit. Subtrees are runs of consecutive ranks.
struct Binomial {
  int n, root, v;
  OURO_HD explicit Binomial(Place at) : n(at.size), root(at.root), v(wrap(at.rank - at.root, at.size)) {}
  OURO_HD int rank_of(int u) const { return wrap(u + root, n); }
  OURO_HD int parent() const { return rank_of(v & (v - 1)); }
  /// Smallest power of two that is too large to be a child's distance.
  OURO_HD int reach() const { return v == 0 ? n : v & -v; }
  OURO_HD bool has_child(int distance) const { return distance < reach() && v + distance < n; }
  /// Distance of the child with the largest subtree; 0 without children.
  OURO_HD int top() const {
    int d = 0;
    for (int k = 1; has_child(k); k *= 2) d = k;
    return d;
  }
  OURO_HD int depth() const {
    int d = 0;
    for (int u = v; u != 0; u &= u - 1) ++d;
    return d;
  }
};

/// Reduces chunk c up to the root. Small subtrees are ready first and are received first.
template <class Listener>
OURO_HD void tree_up(const Binomial& tree, int c, Listener&& step) {
  const int top = tree.top();
  if (top == 0) return step(send_widened(c, tree.parent()));
  const bool is_root = tree.v == 0;
  const int last = tree.rank_of(tree.v + top);
  if (top == 1 && is_root) return step(reduce_keep(c, last));
  if (top == 1) return step(reduce_forward(c, last, tree.parent()));
  step(accumulate_input(c, tree.rank_of(tree.v + 1)));
  for (int d = 2; d < top; d *= 2) step(accumulate(c, tree.rank_of(tree.v + d)));
  if (is_root) return step(accumulate_store(c, last));
  step(accumulate(c, last));
  step(send_partial(c, tree.parent()));
}

/// Sends chunk c of the root down to all ranks. Large subtrees take longest and are served first.
template <class Listener>
OURO_HD void tree_down(const Binomial& tree, int c, bool from_input, Listener&& step) {
  int d = tree.top();
  if (tree.v != 0) {
    if (d == 0) return step(recv(c, tree.parent()));
    step(forward(c, tree.parent(), tree.rank_of(tree.v + d)));
    d /= 2;
  }
  if (from_input) {
    for (; d > 0; d /= 2) step(send(c, tree.rank_of(tree.v + d)));
  } else {
    for (; d > 0; d /= 2) step(send_result(c, tree.rank_of(tree.v + d)));
  }
}

struct TreeBroadcast : Traits {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    tree_down(Binomial(at), 0, at.rank == at.root, step);
    if (at.rank == at.root) step(copy(0));
  }
};

struct TreeReduce : Traits {
  static constexpr bool kCanonical = false, kKeeps = true;
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    tree_up(Binomial(at), 0, step);
  }
};

/// Reduces to rank 0, then broadcasts from there.
struct TreeAllReduce : Traits {
  static constexpr bool kCanonical = false, kKeeps = true;
  static constexpr bool kPipelined = true;
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) {
      for (int c = 0; c < at.rounds; ++c) step(store_input(c));
      return;
    }
    at.root = 0;
    const Binomial tree(at);
    pipeline(
        at.rounds, kLagPerHop * tree.depth(), [&](int c) { tree_up(tree, c, step); },
        [&](int c) { tree_down(tree, c, false, step); });
  }
};

}  // namespace ouro::flow
