// Rules of the topologies that are given by rows: exponential graphs, CECA, grids, the star.
// See topology_state.h.
#include <algorithm>
#include <numeric>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

/// Metropolis weights: 1 / (1 + max(degree_i, degree_j)) between neighbours, the rest for the rank itself.
/// Computed over a common denominator per rank, so that each weight is rounded once.
std::vector<Row> metropolis(const std::vector<std::vector<int>>& neighbours) {
  std::vector<Row> rows(neighbours.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto over = [&](int j) {
      return static_cast<std::int64_t>(
          1 + std::max(neighbours[i].size(), neighbours[static_cast<std::size_t>(j)].size()));
    };
    std::int64_t whole = 1;
    for (const int j : neighbours[i]) whole = std::lcm(whole, over(j));
    std::int64_t rest = whole;
    for (const int j : neighbours[i]) {
      rest -= whole / over(j);
      rows[i].in.emplace_back(j, 1 / static_cast<double>(over(j)));
    }
    rows[i].self = static_cast<double>(rest) / static_cast<double>(whole);
  }
  return rows;
}

/// `given` rows, a divisor of n; 0: the largest divisor of n not above sqrt(n).
Plan make_lattice(int n, int given, bool wrapped) {
  int rows = given;
  for (int d = 1; given == 0 && std::int64_t{d} * d <= n; ++d)
    if (n % d == 0) rows = d;
  const int columns = n / rows;
  std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    auto& mine = neighbours[static_cast<std::size_t>(rank)];
    const int row = rank / columns, column = rank % columns;
    for (const auto& [down, right] : {std::pair{0, -1}, {0, 1}, {-1, 0}, {1, 0}}) {
      int y = row + down, x = column + right;
      if (wrapped) y = (y + rows) % rows, x = (x + columns) % columns;
      if (y < 0 || y >= rows || x < 0 || x >= columns || y * columns + x == rank) continue;
      mine.push_back(y * columns + x);
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
  }
  Plan plan;
  plan.add(metropolis(neighbours));
  return plan;
}

}  // namespace

Result<Plan> make_one_peer_exp_directed(int n, const TopologyOptions&) {
  Plan plan;
  if (n == 1) plan.add(std::vector<Row>(1));
  for (int distance = 1; distance < n; distance *= 2) {
    std::vector<Row> rows(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r)
      rows[static_cast<std::size_t>(r)] = {0.5, {{(r - distance + n) % n, 0.5}}, {}};
    plan.add(std::move(rows));
  }
  return plan;
}

Result<Plan> make_static_exp(int n, const TopologyOptions&) {
  const double weight = 1 / static_cast<double>(ceil_log2(n) + 1);
  std::vector<Row> rows(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) {
    Row& row = rows[static_cast<std::size_t>(r)];
    row.self = weight;
    for (int distance = 1; distance < n; distance *= 2) row.in.emplace_back((r - distance + n) % n, weight);
  }
  Plan plan;
  plan.add(std::move(rows));
  return plan;
}

Result<Plan> make_grid(int n, const TopologyOptions& o) { return make_lattice(n, o.rows, false); }
Result<Plan> make_torus(int n, const TopologyOptions& o) { return make_lattice(n, o.rows, true); }

Result<Plan> make_star(int n, const TopologyOptions&) {
  std::vector<std::vector<int>> neighbours(static_cast<std::size_t>(n));
  for (int r = 1; r < n; ++r) {
    neighbours[0].push_back(r);
    neighbours[static_cast<std::size_t>(r)] = {0};
  }
  Plan plan;
  plan.add(metropolis(neighbours));
  return plan;
}

/// After "DSGD-CECA: Decentralized SGD with Communication-Optimal Exact Consensus Algorithm" (Ding et al.,
/// ICML 2023). After rounds whose bits spell c in binary, x is the mean of c + 1 ranks, this one and the c
/// before it, and y is the mean of those c.
Result<Plan> make_ceca_2p(int n, const TopologyOptions&) {
  Plan plan;
  plan.vectors = 2;
  if (n == 1) plan.steps.push_back({.rows = std::vector<Row>(1), .pairs = std::vector<PairRow>(1)});
  std::int64_t c = 0;
  for (int bit = ceil_log2(n) - 1; bit >= 0; --bit) {
    const bool send_x = ((n - 1) >> bit & 1) != 0;
    const int distance = static_cast<int>(send_x ? c + 1 : c);
    const auto whole = static_cast<double>(2 * c + 1);
    const double more = static_cast<double>(c + 1) / whole, less = static_cast<double>(c) / whole;
    Topology::State::Step step{.rows = std::vector<Row>(static_cast<std::size_t>(n)),
                               .pairs = std::vector<PairRow>(static_cast<std::size_t>(n))};
    for (int r = 0; r < n; ++r) {
      const int from = (r - distance + n) % n;
      PairRow& pair = step.pairs[static_cast<std::size_t>(r)];
      if (send_x)
        pair = {.send_x = true, .x_self = 0.5, .x_in = 0.5, .y_self = less, .y_in = more};
      else
        pair = {.send_x = false, .x_self = more, .x_in = less, .y_self = 0.5, .y_in = 0.5};
      pair.from = from, pair.to = (r + distance) % n;
      step.rows[static_cast<std::size_t>(r)] = {0, {{from, 1.0}}, {}};
    }
    plan.steps.push_back(std::move(step));
    c = send_x ? 2 * c + 1 : 2 * c;
  }
  return plan;
}

}  // namespace ouro::train
