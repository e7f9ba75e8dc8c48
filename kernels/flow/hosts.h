// The placement of a group's ranks on hosts, and the parts that flows over hosts are built from. Used by
// hierarchy.h and hierarchy_tree.h; code that runs these (including tests and the simulator) makes one
// HostMap per group.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/flow/traits.h"

namespace ouro::flow {

/// A view of a HostMap; if empty, all ranks share one host. Hosts are numbered in the order of their first
/// ranks; the ranks of a host need not be consecutive.
struct HostLayout {
  std::span<const int> first =
      {};  // by host: number of ranks on the hosts before it; one more at the end: all ranks
  std::span<const int> order = {};  // ranks, host after host, in rank order within each host
  std::span<const int> host = {};   // by rank: its host
  std::span<const int> index = {};  // by rank: the number of ranks of its host before it
  int smallest = 0;                 // ranks of the smallest host
};

class HostMap {
 public:
  /// host_of[r] identifies the host of rank r, by an arbitrary number.
  explicit HostMap(std::span<const int> host_of) : host_(host_of.size()), index_(host_of.size()) {
    std::vector<int> names, sizes;
    for (std::size_t r = 0; r < host_of.size(); ++r) {
      const auto at = std::find(names.begin(), names.end(), host_of[r]) - names.begin();
      if (at == std::ssize(names)) names.push_back(host_of[r]), sizes.push_back(0);
      host_[r] = static_cast<int>(at);
      index_[r] = sizes[static_cast<std::size_t>(at)]++;
    }
    first_.assign(1, 0);
    for (const int size : sizes) first_.push_back(first_.back() + size);
    order_.resize(host_of.size());
    for (std::size_t r = 0; r < host_of.size(); ++r) {
      const int place = first_[static_cast<std::size_t>(host_[r])] + index_[r];
      order_[static_cast<std::size_t>(place)] = static_cast<int>(r);
    }
    smallest_ = sizes.empty() ? 0 : *std::min_element(sizes.begin(), sizes.end());
  }
  /// Valid until this object is assigned to or destroyed.
  HostLayout view() const { return {first_, order_, host_, index_, smallest_}; }

 private:
  std::vector<int> first_, order_, host_, index_;
  int smallest_ = 0;
};

/// Base of the flows that know the placement of ranks.
struct OverHosts : Traits {
  using Data = HostLayout;
  static constexpr bool kBetweenHosts = true;
};

/// The hosts as one rank sees them.
class Site {
 private:
  const HostLayout& hosts_;
  const int ranks_;

 public:
  Site(const HostLayout& hosts, Place at)
      : hosts_(hosts),
        ranks_(at.size),
        count(hosts.order.empty() ? 1 : static_cast<int>(hosts.first.size()) - 1),
        host(host_of(at.rank)),
        index(index_of(at.rank)),
        size(size_of(host)),
        smallest(hosts.order.empty() ? at.size : hosts.smallest) {}

  const int count;              // hosts
  const int host, index, size;  // my host, my index among its ranks, its number of ranks
  const int smallest;           // ranks of the smallest host

  int host_of(int r) const { return hosts_.order.empty() ? 0 : hosts_.host[static_cast<std::size_t>(r)]; }
  int index_of(int r) const { return hosts_.order.empty() ? r : hosts_.index[static_cast<std::size_t>(r)]; }
  int size_of(int q) const { return before(q + 1) - before(q); }
  /// The i-th rank of host q.
  int rank_of(int q, int i) const {
    return hosts_.order.empty() ? i : hosts_.order[static_cast<std::size_t>(before(q) + i)];
  }
  /// The rank d places after me on my host, wrapping around; -size < d < size.
  int mate(int d) const { return rank_of(host, wrap(index + d, size)); }
  /// Host q, wrapping around; -count <= q < 2*count.
  int ring(int q) const { return wrap(q, count); }
  /// Number of ranks on the hosts q, q+1, ..., q+length-1, wrapping around; 0 <= q < count, 0 <=
  /// length <= count.
  int ranks_on(int q, int length) const {
    const int end = q + length;
    return end <= count ? before(end) - before(q) : ranks_ - before(q) + before(end - count);
  }

 private:
  int before(int q) const {
    if (hosts_.order.empty()) return q == 0 ? 0 : ranks_;
    return hosts_.first[static_cast<std::size_t>(q)];
  }
};

/// The part of a step's verb that says where a sum is left: in the accumulator, sent on wide, or stored into
/// the output.
inline constexpr std::uint32_t kKept = kKeep, kPassed = kSend | kPartialOut, kStored = kStore;

/// The partial sum of one chunk on a rank: its input alone, or what it has accumulated.
template <class Listener>
class Sum {
 public:
  Sum(Listener& step, int chunk, bool kept = false)
      : step_(step), chunk_(chunk), mine_(kept ? std::uint32_t{kAcc} : std::uint32_t{kInput}) {}
  /// Adds the incoming value and leaves the sum: kKept, kPassed, kStored, or kStored | kSend.
  void add(int from, std::uint32_t leave, int to = kNobody) {
    step_(Step{kRecv | kPartialIn | mine_ | leave, chunk_, from, (leave & kSend) != 0 ? to : kNobody});
    if (leave == kKept) mine_ = kAcc;
  }
  /// Adds the inputs of all other ranks of my host and leaves the sum.
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
