// The contents of a topology, and the rules that make the built-in ones. Used by topology*.cc only.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ouro/train/topology.hpp"

namespace ouro::train {

struct Topology::State {
  struct Step {
    Round edges;               // empty: `rows` (or `pairs`) define the round
    std::vector<int> edge_of;  // by rank
    std::vector<Row> rows;     // by rank
    std::vector<PairRow> pairs;
  };
  int n = 1, vectors = 1;
  std::vector<Step> steps;

  const Step& of_step(std::int64_t step) const {
    const auto period = static_cast<std::int64_t>(steps.size());
    return steps[static_cast<std::size_t>((step % period + period) % period)];
  }
  Row row(const Step&, int rank) const;
};

/// 1,048,576 ranks: an int holds a rank with room for arithmetic, and a mistyped number does not
/// exhaust memory.
inline constexpr int kMostRanks = 1 << 20;

constexpr bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }
/// The smallest m with 2^m >= n.
constexpr int ceil_log2(int n) {
  int m = 0;
  while ((std::int64_t{1} << m) < n) ++m;
  return m;
}

/// The result of a rule: rounds given by edges, by rows (of all ranks, with `out` left empty) or by pairs.
/// Each rule receives n >= 1 and checked options.
struct Plan {
  std::vector<Topology::State::Step> steps;
  int vectors = 1;
  void add(Round edges) { steps.push_back({.edges = std::move(edges)}); }
  void add(std::vector<Row> rows) { steps.push_back({.rows = std::move(rows)}); }
};
/// Checks the rounds and makes the topology.
Result<Topology> finish(int n, Plan);
using Rule = Result<Plan> (*)(int n, const TopologyOptions&);

Result<Plan> make_complete(int n, const TopologyOptions&);
Result<Plan> make_ring(int n, const TopologyOptions&);
Result<Plan> make_one_peer_exp(int n, const TopologyOptions&);
Result<Plan> make_alternating_exp_ring(int n, const TopologyOptions&);
Result<Plan> make_hypercuboid(int n, const TopologyOptions&);
Result<Plan> make_base_k(int n, const TopologyOptions&);
Result<Plan> make_ceca_2p(int n, const TopologyOptions&);
Result<Plan> make_one_peer_exp_directed(int n, const TopologyOptions&);
Result<Plan> make_static_exp(int n, const TopologyOptions&);
Result<Plan> make_grid(int n, const TopologyOptions&);
Result<Plan> make_torus(int n, const TopologyOptions&);
Result<Plan> make_star(int n, const TopologyOptions&);

/// The largest singular value of an n * n matrix, row-major.
double spectral_norm(const std::vector<double>& a, int n);

}  // namespace ouro::train
