// Hierarchical flows for small data on many hosts: one rank per host communicates with the other ranks of its
// host and, along a binomial tree, with other hosts. Used through list.h.
#pragma once
#include "kernels/flow/hosts.h"
#include "kernels/flow/tree.h"

namespace ouro::flow {

/// The tree over hosts. One rank of each host takes part: the root on its host, the first rank on all others.
class HostTree {
 public:
  HostTree(const Site& here, Place at, int root)
      : here_(here), root_(root), tree_(Place{here.host, here.count, here.host_of(root)}), rank_(at.rank) {}

  /// Reduces chunk 0 to the root.
  template <class Listener>
  void up(Listener&& step) const {
    if (rank_ != leader(here_.host)) return step(send_widened(0, leader(here_.host)));
    const bool is_root = tree_.v == 0;
    const int top = tree_.top(), to = is_root ? kNobody : leader(tree_.parent());
    const std::uint32_t leave = is_root ? kStored : kPassed;
    Sum sum(step, 0);
    sum.add_mates(here_, top > 0 ? kKept : leave, to);
    for (int d = 1; d <= top; d *= 2) sum.add(child(d), d < top ? kKept : leave, to);
  }
  /// Broadcasts chunk 0 of the root's input, or of its output, to all others.
  template <class Listener>
  void down(bool of_input, Listener&& step) const {
    if (rank_ != leader(here_.host)) return step(recv(0, leader(here_.host)));
    int d = tree_.top();
    if (tree_.v != 0) {
      const int from = leader(tree_.parent());
      step(d == 0 ? Step(recv(0, from)) : forward(0, from, child(d)));
      d /= 2;
    }
    const auto give = [&](int to) {
      step(of_input && tree_.v == 0 ? Step(send(0, to)) : send_result(0, to));
    };
    for (; d > 0; d /= 2) give(child(d));
    for (int i = 1; i < here_.size; ++i) give(here_.mate(i));
  }

 private:
  int leader(int host) const { return host == here_.host_of(root_) ? root_ : here_.rank_of(host, 0); }
  int child(int distance) const { return leader(tree_.rank_of(tree_.v + distance)); }

  const Site& here_;
  const int root_;
  const Binomial tree_;
  const int rank_;
};

struct HierarchyTreeAllReduce : OverHosts {
  static constexpr bool kCanonical = false, kKeeps = true;
  HostLayout hosts = {};

  int chunks(Place) const { return 1; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const HostTree tree(here, at, 0);
    tree.up(step);
    tree.down(false, step);
  }
};

struct HierarchyTreeReduce : OverHosts {
  static constexpr bool kCanonical = false, kKeeps = true;
  HostLayout hosts = {};

  int chunks(Place) const { return 1; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    HostTree(here, at, at.root).up(step);
  }
};

struct HierarchyTreeBroadcast : OverHosts {
  HostLayout hosts = {};

  int chunks(Place) const { return 1; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    HostTree(here, at, at.root).down(true, step);
    if (at.rank == at.root) step(copy(0));
  }
};

}  // namespace ouro::flow
