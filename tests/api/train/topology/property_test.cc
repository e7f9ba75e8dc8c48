// Properties of every built-in topology for n = 1..64: stochastic rows and columns, degrees, transposed
// neighbours, exact products, contraction, lengths, weights that are the nearest doubles of their fractions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>

#include "ouro/train/topology.hpp"

namespace ouro::train {
namespace {

constexpr int kMost = 64;

int ceil_log2(int n) {
  int m = 0;
  while ((1 << m) < n) ++m;
  return m;
}
bool power_of_two(int n) { return (n & (n - 1)) == 0; }
bool smooth(int n, int most) {
  for (int p = 2; p <= most; ++p)
    while (n % p == 0) n /= p;
  return n == 1;
}

/// The guarantees of a name at n; nullopt: it must refuse.
struct Promise {
  bool exact = false;
  int degree = 0;  // messages in, and out, in a round
  bool connected = true;
};
std::optional<Promise> promise(const std::string& name, int n, const TopologyOptions& o) {
  const int nodes = n / o.local_world_size;
  if (name == "complete") return Promise{true, n - 1};
  if (name == "ring") return Promise{n <= 2 || n == 4, 1};
  if (name == "one-peer-exp") return power_of_two(n) ? std::optional(Promise{true, 1}) : std::nullopt;
  if (name == "alternating-exp-ring")
    return nodes >= 2 && power_of_two(nodes) ? std::optional(Promise{true, 2 * o.local_world_size - 1})
                                             : std::nullopt;
  if (name == "hypercuboid")
    return smooth(n, o.peers + 1) ? std::optional(Promise{true, o.peers}) : std::nullopt;
  if (name == "base-k") return Promise{true, o.peers};
  if (name == "ceca-2p") return Promise{true, 1};
  if (name == "one-peer-exp-directed") return Promise{power_of_two(n), 1};
  if (name == "static-exp") return Promise{n <= 3, ceil_log2(n)};
  if (name == "grid") return Promise{n <= 2, 4};
  if (name == "torus") return Promise{n <= 3, 4};
  if (name == "star") return Promise{n <= 2, n - 1};
  ADD_FAILURE() << "no promise is known for " << name;
  return std::nullopt;
}

std::vector<double> product(const Topology& t) {
  const auto n = static_cast<std::size_t>(t.size());
  std::vector<double> p = t.matrix(0);
  for (int k = 1; k < t.period(); ++k) {
    const std::vector<double> w = t.matrix(k);
    std::vector<double> next(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t l = 0; l < n; ++l)
        for (std::size_t j = 0; j < n; ++j) next[i * n + j] += w[i * n + l] * p[l * n + j];
    p = std::move(next);
  }
  return p;
}

/// The denominator, at most 8192, of a fraction whose nearest double is w (or within an ulp or two of it);
/// the largest that a rule has for n <= 64 is a product of n's parts. 0 if there is none.
int denominator_of(double w) {
  for (int q = 1; q <= 8192; ++q)
    if (std::abs(w * q - std::round(w * q)) <= 1e-15 * q) return q;
  return 0;
}

void check_rounds(const Topology& t, const Promise& want) {
  const int n = t.size();
  for (int k = 0; k < t.period(); ++k) {
    const std::vector<double> w = t.matrix(k);
    std::vector<std::vector<int>> out(static_cast<std::size_t>(n));
    std::vector<double> columns(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
      const Row row = t.row(k + 5 * t.period(), i);
      ASSERT_LE(static_cast<int>(row.in.size()), want.degree) << "round " << k << " rank " << i;
      ASSERT_LE(static_cast<int>(row.out.size()), want.degree) << "round " << k << " rank " << i;
      std::vector<double> dense(static_cast<std::size_t>(n));
      dense[static_cast<std::size_t>(i)] = row.self;
      int before = -1;
      for (const auto& [from, weight] : row.in) {
        ASSERT_GT(from, before) << "sorted by rank, once each";
        ASSERT_NE(from, i);
        ASSERT_GT(weight, 0);
        before = from;
        dense[static_cast<std::size_t>(from)] = weight;
        out[static_cast<std::size_t>(from)].push_back(i);
      }
      double sum = 0;
      for (int j = 0; j < n; ++j) {
        const double entry = w[static_cast<std::size_t>(i * n + j)];
        ASSERT_EQ(entry, dense[static_cast<std::size_t>(j)]);
        ASSERT_GE(entry, 0);
        ASSERT_NE(denominator_of(entry), 0) << entry << " is not a fraction of the rule";
        sum += entry;
        columns[static_cast<std::size_t>(j)] += entry;
      }
      ASSERT_NEAR(sum, 1, 1e-13) << "row " << i << " round " << k;
    }
    for (int j = 0; j < n; ++j) {
      ASSERT_NEAR(columns[static_cast<std::size_t>(j)], 1, 1e-13) << "column " << j << " round " << k;
      ASSERT_EQ(t.row(k, j).out, out[static_cast<std::size_t>(j)]) << "out is in, transposed; round " << k;
    }
  }
}

TEST(Property, EveryTopologyUpTo64RanksIsValid) {
  int made = 0, refused = 0;
  for (const TopologyInfo& info : topologies()) {
    for (int n = 1; n <= kMost; ++n) {
      for (int variant = 1; variant <= 4; ++variant) {
        TopologyOptions o;
        if (info.by_peers) o.peers = variant;
        if (info.by_node && n % variant == 0) o.local_world_size = variant;
        if (info.by_rows && n % variant == 0) o.rows = variant == 1 ? 0 : variant;
        if (variant > 1 && !info.by_peers && o.local_world_size == 1 && o.rows == 0) continue;
        SCOPED_TRACE(info.name + " n " + std::to_string(n) + " variant " + std::to_string(variant));
        const std::optional<Promise> want = promise(info.name, n, o);
        const Result<Topology> t = Topology::make(info.name, n, o);
        ASSERT_EQ(t.ok(), want.has_value()) << t.status().message();
        if (!want) {
          ASSERT_EQ(t.status().code(), Code::invalid);
          ++refused;
          continue;
        }
        ++made;
        ASSERT_NO_FATAL_FAILURE(check_rounds(*t, *want));
        const double contraction = t->contraction();
        ASSERT_LT(contraction, 1);
        ASSERT_EQ(contraction < 1e-12, want->exact) << contraction;
        if (want->exact && t->vectors() == 1) {
          for (const double entry : product(*t)) ASSERT_NEAR(entry, 1.0 / n, 1e-13);
        }
      }
    }
  }
  printf("%d topologies checked, %d refused as they must\n", made, refused);
  EXPECT_GT(made, 12 * 40);
}

TEST(Property, BaseKHasTheExpectedPeriods) {
  const int one[] = {1, 3, 2, 5, 4, 5, 3, 7, 6, 7, 5, 7, 6, 7, 4},
            two[] = {1, 1, 2, 3, 2, 4, 3, 2, 4, 5, 3, 5, 5, 4, 4};
  for (int n = 2; n <= 16; ++n) {
    EXPECT_EQ(Topology::make("base-k", n, {.peers = 1})->period(), one[n - 2]) << n;
    EXPECT_EQ(Topology::make("base-k", n, {.peers = 2})->period(), two[n - 2]) << n;
  }
  for (int k = 1; k <= 5; ++k)
    for (int n = 2; n <= kMost; ++n) {
      int floor_log = 0;
      for (int power = k + 1; power <= n; power *= k + 1) ++floor_log;
      EXPECT_LE(Topology::make("base-k", n, {.peers = k})->period(), 2 * floor_log + 2)
          << "n " << n << " k " << k;
    }
}

TEST(Property, RingOfEvenLengthContractsAsTheCosine) {
  for (int n = 4; n <= kMost; n += 2)
    EXPECT_NEAR(Topology::make("ring", n)->contraction(), std::cos(2 * std::numbers::pi / n), 1e-12) << n;
}

TEST(Property, OddRingHasThreeRounds) {
  const Result<Topology> ring = Topology::make("ring", 5);
  ASSERT_TRUE(ring.ok());
  ASSERT_EQ(ring->period(), 3);
  const std::vector<std::vector<int>> groups = {{0, 1}, {2, 3}, {4}, {1, 2}, {3, 4},
                                                {0},    {0, 4}, {1}, {2},    {3}};
  EXPECT_EQ(ring->groups(), groups);
}

/// Exact after ceil(log2 n) rounds, whatever y was before; the means of x and y stay equal.
TEST(Property, CecaKeepsTheMeanAndReachesItInLogRounds) {
  for (int n = 1; n <= kMost; ++n) {
    SCOPED_TRACE(n);
    const Result<Topology> t = Topology::make("ceca-2p", n);
    ASSERT_TRUE(t.ok());
    ASSERT_EQ(t->vectors(), 2);
    ASSERT_EQ(t->period(), std::max(1, ceil_log2(n)));
    std::vector<double> x, y;
    for (int r = 0; r < n; ++r) x.push_back(std::sin(r + 1)), y.push_back(1000 + r);
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
    for (int k = 0; k < t->period(); ++k) {
      std::vector<double> z(x.size()), x_next(x.size()), y_next(x.size());
      for (int r = 0; r < n; ++r) {
        const auto me = static_cast<std::size_t>(r);
        const PairRow p = *t->pair(k, r);
        const Row row = t->row(k, r);
        ASSERT_EQ(p.send_x, t->pair(k, 0)->send_x);
        if (n == 1) {
          ASSERT_EQ(p.from, -1);
          x_next = x, y_next = y;
          continue;
        }
        ASSERT_EQ(row.self, 0);
        ASSERT_EQ(row.in, (std::vector<std::pair<int, double>>{{p.from, 1.0}}));
        ASSERT_EQ(row.out, std::vector<int>{p.to});
        const auto from = static_cast<std::size_t>(p.from);
        z[me] = p.send_x ? x[from] : y[from];
        x_next[me] = p.x_self * x[me] + p.x_in * z[me];
        y_next[me] = p.y_self * y[me] + p.y_in * z[me];
      }
      x = x_next, y = y_next;
      EXPECT_NEAR(std::accumulate(x.begin(), x.end(), 0.0) / n, mean, 1e-13);
      if (n == 1) continue;
      EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / n, mean, 1e-13);
    }
    for (const double value : x) EXPECT_NEAR(value, mean, 1e-13);
  }
}

TEST(Property, GridAndTorusHaveTheExpectedNeighbours) {
  const Result<Topology> grid = Topology::make("grid", 12, {.rows = 2});
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->row(0, 0), (Row{.self = 5.0 / 12, .in = {{1, 0.25}, {6, 1.0 / 3}}, .out = {1, 6}}));
  const Result<Topology> torus = Topology::make("torus", 12);  // 3 rows of 4
  ASSERT_TRUE(torus.ok());
  EXPECT_EQ(torus->row(0, 0).out, (std::vector<int>{1, 3, 4, 8}));
  EXPECT_EQ(Topology::make("torus", 4)->row(0, 0).out, (std::vector<int>{1, 2}));  // without duplicates
}

TEST(Property, MeanWeightsAreExactAndZeroWeightsSendNothing) {
  const Result<Topology> three = Topology::from_rounds(3, {{{{0, 1, 2}, 1.0 / 3}}});
  ASSERT_TRUE(three.ok());
  for (const double w : three->matrix(0)) EXPECT_EQ(w, 1.0 / 3);
  const Result<Topology> idle =
      Topology::from_rounds(3, {{{{0, 1, 2}, 1}}, {{{2, 0}, 0.25}, {{1}, 1}}, {{{1, 2}, 0.5}, {{0}, 1}}});
  ASSERT_TRUE(idle.ok());
  EXPECT_EQ(idle->row(0, 1), Row{});
  EXPECT_EQ(idle->row(1, 0), (Row{.self = 0.25, .in = {{2, 0.75}}, .out = {2}}));
  EXPECT_EQ(idle->row(-2, 0), idle->row(1, 0));
  EXPECT_EQ(idle->row(0, 3), Row{});
  EXPECT_EQ(idle->groups(), (std::vector<std::vector<int>>{{0, 1, 2}, {0, 2}, {1}, {1, 2}, {0}}));
}

}  // namespace
}  // namespace ouro::train
