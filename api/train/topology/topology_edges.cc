// Rules of the topologies whose rounds are averages within edges. See topology_state.h.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

/// An edge in which these ranks average among themselves.
Edge mean_of(std::vector<int> ranks) {
  const double weight = 1 / static_cast<double>(ranks.size());
  return {std::move(ranks), weight};
}
Round alone(int n) {
  Round round;
  for (int r = 0; r < n; ++r) round.push_back(mean_of({r}));
  return round;
}

/// Pairs (first, first + 1), (first + 2, first + 3), ...; remaining ranks have no partner.
Round pairs_from(int n, int first) {
  Round round;
  for (int r = first; r + 1 < n; r += 2) round.push_back(mean_of({r, r + 1}));
  for (int r = 0; r < n; ++r)
    if (r < first || (r == n - 1 && (n - first) % 2 == 1)) round.push_back(mean_of({r}));
  return round;
}

}  // namespace

Result<Plan> make_complete(int n, const TopologyOptions&) {
  std::vector<int> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  Plan plan;
  plan.add(Round{mean_of(std::move(all))});
  return plan;
}

Result<Plan> make_ring(int n, const TopologyOptions&) {
  Plan plan;
  if (n == 1) {
    plan.add(alone(n));
    return plan;
  }
  plan.add(pairs_from(n, 0));
  if (n % 2 == 0) {
    Round second;
    for (int r = 0; r < n; r += 2) second.push_back(mean_of({r, (r + n - 1) % n}));
    plan.add(std::move(second));
    return plan;
  }
  plan.add(pairs_from(n, 1));
  Round third{mean_of({0, n - 1})};
  for (int r = 1; r < n - 1; ++r) third.push_back(mean_of({r}));
  plan.add(std::move(third));
  return plan;
}

Result<Plan> make_one_peer_exp(int n, const TopologyOptions&) {
  if (!is_power_of_two(n))
    return invalid(fmt::format(
        "one-peer-exp: {} ranks; expected a power of two; base-k and ceca-2p serve any number", n));
  Plan plan;
  if (n == 1) plan.add(alone(n));
  for (int distance = 1; distance < n; distance *= 2) {
    Round round;
    for (int r = 0; r < n; ++r)
      if ((r & distance) == 0) round.push_back(mean_of({r, r | distance}));
    plan.add(std::move(round));
  }
  return plan;
}

Result<Plan> make_alternating_exp_ring(int n, const TopologyOptions& o) {
  const int per_node = o.local_world_size, nodes = n / per_node;
  if (nodes < 2 || !is_power_of_two(nodes))
    return invalid(
        fmt::format("alternating-exp-ring: {} ranks with {} a node make {} nodes; expected 2, 4, 8, ...", n,
                    per_node, nodes));
  const auto add_node = [&](std::vector<int>& ranks, int node) {
    for (int r = 0; r < per_node; ++r) ranks.push_back(node * per_node + r);
  };
  Plan plan;
  int count = 0;  // number of pairs of nodes so far, over all distances
  for (int distance = 1; distance < nodes; distance *= 2) {
    Round even, odd;
    for (int node = 0; node < nodes; ++node) {
      if (node & distance) continue;
      std::vector<int> mine, theirs, both;
      add_node(mine, node);
      add_node(theirs, node | distance);
      add_node(both, node);
      add_node(both, node | distance);
      Round& apart = count % 2 == 0 ? even : odd;
      Round& joint = count % 2 == 0 ? odd : even;
      apart.push_back(mean_of(std::move(mine)));
      apart.push_back(mean_of(std::move(theirs)));
      joint.push_back(mean_of(std::move(both)));
      ++count;
    }
    plan.add(std::move(even));
    plan.add(std::move(odd));
  }
  return plan;
}

}  // namespace ouro::train
