// The data that flows are built from in proofs: placements of ranks on hosts, and random graphs of
// neighbours. Used by the tests of flows.
#pragma once
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/flow/list.h"
#include "tests/kernels/flow/verifier.h"

namespace ouro::flow {

/// Number of ranks of each host.
using Sizes = std::vector<int>;

inline std::string text(const Sizes& sizes) {
  std::string out;
  for (const int k : sizes) out += (out.empty() ? "" : "+") + std::to_string(k);
  return out;
}

/// The host of each rank, if the ranks of a host are consecutive.
inline std::vector<int> in_order(const Sizes& sizes) {
  std::vector<int> host_of;
  for (std::size_t m = 0; m < sizes.size(); ++m)
    host_of.insert(host_of.end(), static_cast<std::size_t>(sizes[m]), static_cast<int>(m));
  return host_of;
}

inline std::vector<Sizes> compositions(int n) {
  std::vector<Sizes> all;
  for (int cuts = 0; cuts < 1 << (n - 1); ++cuts) {
    Sizes sizes = {1};
    for (int r = 0; r < n - 1; ++r) (cuts >> r & 1) != 0 ? sizes.push_back(1) : void(++sizes.back());
    all.push_back(sizes);
  }
  return all;
}

inline const Sizes kSelected[] = {{7, 8},
                                  {8, 7},
                                  {1, 5, 2},
                                  {5, 1, 1, 5},
                                  {8, 8, 8, 8},
                                  {16, 16, 16, 16},
                                  {32, 32},
                                  {64},
                                  {1, 63},
                                  {63, 1},
                                  {31, 33},
                                  {2, 3, 5, 7, 11, 13, 17},
                                  {13, 17, 19},
                                  {1, 2, 4, 8, 16, 32},
                                  {9, 1, 9, 1, 9, 1},
                                  {1, 1, 1, 30, 1, 30},
                                  Sizes(31, 1),
                                  Sizes(64, 1),
                                  Sizes(37, 1),
                                  Sizes(32, 2),
                                  Sizes(13, 4)};

using Terms = std::vector<std::pair<int, double>>;

struct Graph {
  std::vector<double> self;
  std::vector<Terms> in_neighbours;
  std::vector<std::vector<int>> out_neighbours;
};

/// Each possible link exists with this probability; all weights are different. Some ranks give no weight to
/// their own input.
inline Graph random_graph(int n, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> unit;
  const auto size = static_cast<std::size_t>(n);
  Graph g{std::vector<double>(size), std::vector<Terms>(size), std::vector<std::vector<int>>(size)};
  for (int r = 0; r < n; ++r) {
    const auto me = static_cast<std::size_t>(r);
    for (int from = 0; from < n; ++from) {
      if (from == r || unit(random) >= density) continue;
      g.in_neighbours[me].emplace_back(from, unit(random));
      g.out_neighbours[static_cast<std::size_t>(from)].push_back(r);
    }
    const double kind = unit(random);
    g.self[me] = kind < 0.2 ? 0 : kind < 0.4 ? 1 : unit(random);
  }
  return g;
}

inline Program record(const Graph& g, int rounds) {
  Program p = record_each(Collective::mix, static_cast<int>(g.self.size()), 0, rounds, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return made<Gossip>({.row = {g.self[i], g.in_neighbours[i], g.out_neighbours[i]}});
  });
  p.self = g.self;
  p.in_neighbours = g.in_neighbours;
  return p;
}
inline constexpr double kDensities[] = {0, 0.15, 0.5, 1};

/// Calls f(Collective, Algorithm, flow) for the flows that serve one host and are built without data; the
/// others have mutants of their own.
template <class F>
void for_each_plain_flow(F&& f) {
  for_each_flow([&]<class Flow>(Collective c, Algorithm a, const Flow& flow) {
    if constexpr (kOnDevices<Flow>) f(c, a, flow);
  });
}

/// Calls f(Collective, name, flow) for the flows that serve only several hosts, built for these hosts.
template <class F>
void for_each_between_hosts(const HostLayout& hosts, F&& f) {
  for_each_flow(
      [&]<class Flow>(Collective c, Algorithm a, const Flow& flow) {
        if constexpr (Flow::kBetweenHosts) f(c, name(a), flow);
      },
      {.hosts = hosts});
}

}  // namespace ouro::flow
