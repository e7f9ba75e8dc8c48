// Topology: checks of rounds and matrices, rows, groups, contraction. See ouro/train/topology.hpp.
#include "ouro/train/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

using State = Topology::State;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

Status check_size(int n) {
  if (n >= 1 && n <= kMostRanks) return {};
  return invalid(fmt::format("topology: {} ranks; expected 1 to {}", n, kMostRanks));
}

/// Checks a round and fills in the edge of each rank; sorts the ranks of each edge.
Status finish_edges(int n, std::size_t round, State::Step& step) {
  step.edge_of.assign(at(n), -1);
  for (std::size_t e = 0; e < step.edges.size(); ++e) {
    Edge& edge = step.edges[e];
    if (edge.ranks.empty())
      return invalid(
          fmt::format("topology: round {}: edge {} is empty; expected at least one rank", round, e));
    std::sort(edge.ranks.begin(), edge.ranks.end());
    for (const int r : edge.ranks) {
      if (r < 0 || r >= n)
        return invalid(fmt::format("topology: round {}: rank {} does not exist (0..{})", round, r, n - 1));
      if (step.edge_of[at(r)] >= 0)
        return invalid(fmt::format("topology: round {}: rank {} is named twice; expected once", round, r));
      step.edge_of[at(r)] = static_cast<int>(e);
    }
    if (!(edge.weight >= 0 && edge.weight <= 1))  // also rejects NaN
      return invalid(fmt::format("topology: round {}: the edge of rank {} has weight {}; expected 0 to 1",
                                 round, edge.ranks[0], edge.weight));
    if (edge.ranks.size() == 1 && edge.weight != 1)
      return invalid(fmt::format("topology: round {}: rank {} is alone with weight {}; expected 1", round,
                                 edge.ranks[0], edge.weight));
  }
  for (int r = 0; r < n; ++r)
    if (step.edge_of[at(r)] < 0)
      return invalid(fmt::format("topology: round {}: rank {} is in no edge; expected one", round, r));
  return {};
}

/// Sorts the neighbours, drops those of weight zero, and fills in the senders' `out`.
void finish_rows(std::vector<Row>& rows) {
  for (Row& row : rows) row.out.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto& in = rows[i].in;
    std::erase_if(in, [](const auto& x) { return x.second == 0; });
    std::sort(in.begin(), in.end());
    for (const auto& [from, weight] : in) rows[at(from)].out.push_back(static_cast<int>(i));
  }
}

/// Sets of connected ranks. Because rounds are balanced, a connection between two ranks works in
/// both directions.
class Parts {
 public:
  explicit Parts(int n) : up_(at(n)) { std::iota(up_.begin(), up_.end(), 0); }
  int of(int r) {
    while (up_[at(r)] != r) r = up_[at(r)] = up_[at(up_[at(r)])];
    return r;
  }
  void join(int a, int b) { up_[at(of(a))] = of(b); }

 private:
  std::vector<int> up_;
};

Status check_connected(const State& s) {
  Parts parts(s.n);
  for (const State::Step& step : s.steps) {
    for (const Edge& edge : step.edges)
      for (std::size_t i = 1; i < edge.ranks.size() && edge.weight < 1; ++i)
        parts.join(edge.ranks[0], edge.ranks[i]);
    for (std::size_t r = 0; r < step.rows.size(); ++r)
      for (const auto& [from, weight] : step.rows[r].in) parts.join(static_cast<int>(r), from);
    for (std::size_t r = 0; r < step.pairs.size(); ++r)
      if (step.pairs[r].from >= 0) parts.join(static_cast<int>(r), step.pairs[r].from);
  }
  for (int r = 1; r < s.n; ++r)
    if (parts.of(r) != parts.of(0))
      return invalid(
          fmt::format("topology: in none of its {} rounds, nor through others, does rank {} receive from "
                      "rank 0; expected all ranks connected",
                      s.steps.size(), r));
  return {};
}

/// y = W x for x of n * columns, row-major.
std::vector<double> apply(const State& s, const State::Step& step, const std::vector<double>& x,
                          int columns) {
  std::vector<double> y(x.size());
  for (int i = 0; i < s.n; ++i) {
    const Row row = s.row(step, i);
    const auto add = [&](int from, double weight) {
      for (int c = 0; c < columns; ++c)
        y[at(i) * at(columns) + at(c)] += weight * x[at(from) * at(columns) + at(c)];
    };
    add(i, row.self);
    for (const auto& [from, weight] : row.in) add(from, weight);
  }
  return y;
}

/// Applies one round to the x and y of all ranks, each of n * columns.
void apply_pairs(const State& s, const State::Step& step, std::vector<double>& x, std::vector<double>& y,
                 int columns) {
  const std::vector<double> x_old = x, y_old = y;
  for (int i = 0; i < s.n; ++i) {
    const PairRow& p = step.pairs[at(i)];
    if (p.from < 0) continue;
    for (int c = 0; c < columns; ++c) {
      const std::size_t mine = at(i) * at(columns) + at(c), theirs = at(p.from) * at(columns) + at(c);
      const double z = p.send_x ? x_old[theirs] : y_old[theirs];
      x[mine] = p.x_self * x_old[mine] + p.x_in * z;
      y[mine] = p.y_self * y_old[mine] + p.y_in * z;
    }
  }
}

std::vector<double> identity(int n) {
  std::vector<double> p(at(n) * at(n));
  for (int i = 0; i < n; ++i) p[at(i) * at(n) + at(i)] = 1;
  return p;
}

}  // namespace

Row State::row(const Step& step, int rank) const {
  if (!step.rows.empty()) return step.rows[at(rank)];
  const Edge& edge = step.edges[at(step.edge_of[at(rank)])];
  const auto size = static_cast<double>(edge.ranks.size());
  Row row{.self = edge.weight};
  if (edge.ranks.size() == 1) return row;
  const bool mean = edge.weight == 1 / size;
  const double share = mean ? edge.weight : (1 - edge.weight) / (size - 1);
  if (share == 0) return row;
  for (const int r : edge.ranks) {
    if (r == rank) continue;
    row.in.emplace_back(r, share);
    row.out.push_back(r);
  }
  return row;
}

Result<Topology> finish(int n, Plan plan) {
  if (plan.steps.empty()) return invalid("topology: no round; expected at least one");
  for (std::size_t k = 0; k < plan.steps.size(); ++k) {
    State::Step& step = plan.steps[k];
    if (step.rows.empty()) {
      OURO_TRY(finish_edges(n, k, step));
    } else {
      finish_rows(step.rows);
    }
  }
  auto state = std::make_shared<State>();
  state->n = n;
  state->vectors = plan.vectors;
  state->steps = std::move(plan.steps);
  OURO_TRY(check_connected(*state));
  return Topology(std::move(state));
}

Result<Topology> Topology::from_rounds(int n, std::vector<Round> rounds) {
  OURO_TRY(check_size(n));
  Plan plan;
  for (Round& round : rounds) plan.add(std::move(round));
  return finish(n, std::move(plan));
}

Result<Topology> Topology::from_matrices(int n, std::span<const double> w) {
  OURO_TRY(check_size(n));
  const std::size_t entries = at(n) * at(n);
  if (w.empty() || w.size() % entries != 0)
    return invalid(fmt::format("topology: {} entries; expected a multiple of {} x {}, at least one matrix",
                               w.size(), n, n));
  Plan plan;
  for (std::size_t k = 0; k < w.size() / entries; ++k) {
    std::vector<Row> rows(at(n));
    std::vector<double> columns(at(n));
    for (int i = 0; i < n; ++i) {
      double sum = 0;
      for (int j = 0; j < n; ++j) {
        const double entry = w[k * entries + at(i) * at(n) + at(j)];
        if (!(entry >= 0))  // also rejects NaN
          return invalid(fmt::format("topology: round {}: rank {} takes {} from rank {}; expected 0 or more",
                                     k, i, entry, j));
        sum += entry;
        columns[at(j)] += entry;
        if (i == j)
          rows[at(i)].self = entry;
        else if (entry > 0)
          rows[at(i)].in.emplace_back(j, entry);
      }
      if (!(std::abs(sum - 1) <= 1e-12))
        return invalid(
            fmt::format("topology: round {}: the row of rank {} sums to {}; expected 1", k, i, sum));
    }
    for (int j = 0; j < n; ++j)
      if (!(std::abs(columns[at(j)] - 1) <= 1e-12))
        return invalid(fmt::format("topology: round {}: the column of rank {} sums to {}; expected 1", k, j,
                                   columns[at(j)]));
    plan.add(std::move(rows));
  }
  return finish(n, std::move(plan));
}

int Topology::size() const { return state_->n; }
int Topology::period() const { return static_cast<int>(state_->steps.size()); }
int Topology::vectors() const { return state_->vectors; }

Row Topology::row(std::int64_t step, int rank) const {
  if (rank < 0 || rank >= size()) return {};
  return state_->row(state_->of_step(step), rank);
}

std::vector<double> Topology::matrix(std::int64_t step) const {
  return apply(*state_, state_->of_step(step), identity(size()), size());
}

Result<Edge> Topology::edge(std::int64_t step, int rank) const {
  if (rank < 0 || rank >= size())
    return invalid(fmt::format("topology: rank {} does not exist (0..{})", rank, size() - 1));
  const State::Step& s = state_->of_step(step);
  if (!s.rows.empty())
    return unsupported(
        fmt::format("topology: the round of step {} is not made of edges; row() has its weights", step));
  return s.edges[at(s.edge_of[at(rank)])];
}

Result<PairRow> Topology::pair(std::int64_t step, int rank) const {
  if (rank < 0 || rank >= size())
    return invalid(fmt::format("topology: rank {} does not exist (0..{})", rank, size() - 1));
  if (vectors() == 1) return unsupported("topology: one vector a rank; row() has its weights");
  return state_->of_step(step).pairs[at(rank)];
}

std::vector<std::vector<int>> Topology::groups() const {
  std::vector<std::vector<int>> sets;
  std::set<std::vector<int>> seen;
  for (const State::Step& step : state_->steps)
    for (const Edge& edge : step.edges)
      if (seen.insert(edge.ranks).second) sets.push_back(edge.ranks);
  return sets;
}

double Topology::contraction() const {
  const int n = size();
  std::vector<double> x = identity(n);
  if (vectors() == 1) {
    for (const State::Step& step : state_->steps) x = apply(*state_, step, x, n);
    for (double& entry : x) entry -= 1.0 / n;
    return spectral_norm(x, n);
  }
  // y may be arbitrary in the first period, so its remaining influence counts, too.
  std::vector<double> y_of_x(x.size()), x_of_y(x.size()), y_of_y = x;
  for (const State::Step& step : state_->steps) {
    apply_pairs(*state_, step, x, y_of_x, n);
    apply_pairs(*state_, step, x_of_y, y_of_y, n);
  }
  for (double& entry : x) entry -= 1.0 / n;
  return std::max(spectral_norm(x, n), spectral_norm(x_of_y, n));
}

}  // namespace ouro::train
