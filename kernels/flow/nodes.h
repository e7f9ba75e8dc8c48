// Where the ranks of a group lie, and what flows over nodes are made of. Used by hierarchy.h and
// hierarchy_tree.h; a NodeMap is made once a group by whoever runs them, tests and the simulator included.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/flow/traits.h"

namespace ouro::flow {

/// A view of a NodeMap; empty: all ranks share one node. Nodes are numbered in the order of their first
/// ranks; the ranks of a node need not follow each other.
struct Nodes {
  std::span<const int> first = {};  // by node: ranks on the nodes before it; at the end, of all
  std::span<const int> order = {};  // ranks, node after node, each node's in order
  std::span<const int> node = {};   // by rank
  std::span<const int> index = {};  // by rank: how many of its node come before it
  int smallest = 0;                 // ranks of the smallest node
};

class NodeMap {
 public:
  /// node_of[r] names the node of rank r, by any number.
  explicit NodeMap(std::span<const int> node_of) : node_(node_of.size()), index_(node_of.size()) {
    std::vector<int> names, sizes;
    for (std::size_t r = 0; r < node_of.size(); ++r) {
      const auto at = std::find(names.begin(), names.end(), node_of[r]) - names.begin();
      if (at == std::ssize(names)) names.push_back(node_of[r]), sizes.push_back(0);
      node_[r] = static_cast<int>(at);
      index_[r] = sizes[static_cast<std::size_t>(at)]++;
    }
    first_.assign(1, 0);
    for (const int size : sizes) first_.push_back(first_.back() + size);
    order_.resize(node_of.size());
    for (std::size_t r = 0; r < node_of.size(); ++r) {
      const int place = first_[static_cast<std::size_t>(node_[r])] + index_[r];
      order_[static_cast<std::size_t>(place)] = static_cast<int>(r);
    }
    smallest_ = sizes.empty() ? 0 : *std::min_element(sizes.begin(), sizes.end());
  }
  /// Valid as long as this is not assigned to or destroyed.
  Nodes view() const { return {first_, order_, node_, index_, smallest_}; }

 private:
  std::vector<int> first_, order_, node_, index_;
  int smallest_ = 0;
};

/// The nodes as one rank sees them.
class Site {
 private:
  const Nodes& nodes_;
  const int ranks_;

 public:
  Site(const Nodes& nodes, Place at)
      : nodes_(nodes),
        ranks_(at.size),
        count(nodes.order.empty() ? 1 : static_cast<int>(nodes.first.size()) - 1),
        node(node_of(at.rank)),
        index(index_of(at.rank)),
        size(size_of(node)),
        smallest(nodes.order.empty() ? at.size : nodes.smallest) {}

  const int count;              // nodes
  const int node, index, size;  // my node, which of its ranks I am, how many it has
  const int smallest;           // ranks of the smallest node

  int node_of(int r) const { return nodes_.order.empty() ? 0 : nodes_.node[static_cast<std::size_t>(r)]; }
  int index_of(int r) const { return nodes_.order.empty() ? r : nodes_.index[static_cast<std::size_t>(r)]; }
  int size_of(int q) const { return before(q + 1) - before(q); }
  /// The i-th rank of node q.
  int rank_of(int q, int i) const {
    return nodes_.order.empty() ? i : nodes_.order[static_cast<std::size_t>(before(q) + i)];
  }
  /// The rank of my node that is d after me, going round; -size < d < size.
  int mate(int d) const { return rank_of(node, wrap(index + d, size)); }
  /// Node q, going round; -count <= q < 2*count.
  int ring(int q) const { return wrap(q, count); }
  /// Ranks on the nodes q, q+1, ..., q+length-1, going round; 0 <= q < count, 0 <= length <= count.
  int ranks_on(int q, int length) const {
    const int end = q + length;
    return end <= count ? before(end) - before(q) : ranks_ - before(q) + before(end - count);
  }

 private:
  int before(int q) const {
    if (nodes_.order.empty()) return q == 0 ? 0 : ranks_;
    return nodes_.first[static_cast<std::size_t>(q)];
  }
};

/// What becomes of a sum.
inline constexpr std::uint32_t kKept = kKeep, kPassed = kSend | kWideOut, kStored = kStore;

/// What a rank has added up of one chunk: its input so far, or what it keeps in the accumulator.
template <class Listener>
class Sum {
 public:
  Sum(Listener& step, int chunk, bool kept = false)
      : step_(step), chunk_(chunk), mine_(kept ? std::uint32_t{kAcc} : std::uint32_t{kInput}) {}
  /// What comes in is added and the sum is left: kKept, kPassed, kStored, or kStored | kSend.
  void add(int from, std::uint32_t leave, int to = kNobody) {
    step_(Step{kRecv | kWideIn | mine_ | leave, chunk_, from, (leave & kSend) != 0 ? to : kNobody});
    if (leave == kKept) mine_ = kAcc;
  }
  /// The inputs of all others of my node are added and the sum is left.
  void add_mates(const Site& here, std::uint32_t leave, int to = kNobody) {
    for (int d = 1; d < here.size; ++d)
      d + 1 < here.size ? add(here.mate(d), kKept) : add(here.mate(d), leave, to);
    if (here.size == 1 && leave == kPassed) pass(to);
    if (here.size == 1 && leave == kStored) step_(store_input(chunk_));
  }
  void pass(int to) { step_(Step{mine_ | kPassed, chunk_, kNobody, to}); }

 private:
  Listener& step_;
  const int chunk_;
  std::uint32_t mine_;
};

}  // namespace ouro::flow
