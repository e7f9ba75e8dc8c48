// Proofs of every flow of the list, for everything it may be built from: every n up to 64, placements of
// ranks on hosts, graphs of neighbours; every root, two windows, several numbers of rounds.
#include <gtest/gtest.h>

#include <functional>

#include "runtime/core/collectives.h"
#include "tests/kernels/flow/worlds.h"

namespace ouro::flow {
namespace {

/// Proves a program for few and for many slots, and for all layouts of its buffers; returns the number
/// of cases.
int proved(const Program& p, const std::string& what) {
  int cases = 0;
  for (const int window : {2, kMaxWindow}) {
    if (p.staging && window != 2) continue;  // it has no links, so the window does not matter
    for (const Aliasing aliasing : aliasings(p)) {
      EXPECT_EQ(verify(p, {window, aliasing}), "")
          << what << ", " << p.size << " ranks, root " << p.root << ", rounds " << p.rounds << ", window "
          << window << ", aliasing " << static_cast<int>(aliasing);
      ++cases;
    }
  }
  return cases;
}

/// Every root for few ranks, some roots for many; one if the collective has none.
std::vector<int> roots(Collective c, int n) {
  std::vector<int> all{0};
  for (int r = 1; r < n && traits_of(c).rooted(); ++r)
    if (n <= 16 || r == 1 || r == n / 2 || r == n - 1) all.push_back(r);
  return all;
}

/// Flows that are called once for each round have the same steps in each.
template <class Flow>
std::vector<int> rounds(std::vector<int> pipelined) {
  return Flow::kPipelined ? pipelined : std::vector<int>{1, 3};
}

/// For every number of ranks.
template <class Flow>
int prove(Collective c, const Flow& flow, NoData) {
  int cases = 0;
  for (int n = 1; n <= kMaxRanks; ++n)
    for (const int root : roots(c, n))
      for (const int k : rounds<Flow>({1, 2, 3, 7, 40}))
        if (k < 40 || n <= 16 || !(Flow::kStaging || Flow::kBetweenHosts))
          cases += proved(record(c, flow, n, root, k), "");
  return cases;
}

template <class Flow>
int prove_on(Collective c, const std::vector<int>& host_of, const std::string& what) {
  const HostMap map(host_of);
  const int n = static_cast<int>(host_of.size());
  int cases = 0;
  for (const int root : roots(c, n))
    for (const int k : rounds<Flow>({1, 2, 3, 7}))
      cases += proved(record(c, made<Flow>({.hosts = map.view()}), n, root, k), what);
  return cases;
}
/// For all placements of up to eight ranks on hosts in order, for some of up to 64 ranks and in any order,
/// and for all ranks on one host.
template <class Flow>
int prove(Collective c, const Flow&, HostLayout) {
  int cases = 0, shapes = 0;
  for (int n = 1; n <= 8; ++n)
    for (const Sizes& sizes : compositions(n))
      cases += prove_on<Flow>(c, in_order(sizes), text(sizes)), ++shapes;
  EXPECT_EQ(shapes, 255);
  for (const Sizes& sizes : kSelected) cases += prove_on<Flow>(c, in_order(sizes), text(sizes));
  std::mt19937 random(5);
  for (const Sizes& sizes : {Sizes{2, 2}, {3, 1, 2}, {4, 4}, {1, 5, 2}, {7, 8}, {5, 6, 5}}) {
    std::vector<int> host_of = in_order(sizes);
    for (int shuffle = 0; shuffle < 8; ++shuffle) {
      std::shuffle(host_of.begin(), host_of.end(), random);
      cases += prove_on<Flow>(c, host_of, text(sizes) + " shuffled");
    }
  }
  for (int n = 1; n <= 9; ++n) cases += proved(record(c, Flow{}, n, n / 2, 3), "without hosts");
  return cases;
}

/// For random directed graphs of up to twelve ranks with their weights.
template <class Flow>
int prove(Collective, const Flow&, NeighbourRow) {
  int cases = 0, links = 0;
  for (int n = 1; n <= 12; ++n)
    for (const double density : kDensities)
      for (unsigned seed = 0; seed < 8; ++seed) {
        const Graph g = random_graph(n, density, 1000 * seed + static_cast<unsigned>(n));
        for (const Terms& terms : g.in_neighbours) links += static_cast<int>(terms.size());
        for (const int k : {1, 2, 3, 7}) {
          const Program p = record(g, k);
          EXPECT_EQ(aliasings(p).size(), 2u);  // the output may be the input
          cases += proved(p, "density " + std::to_string(density) + " seed " + std::to_string(seed));
        }
      }
  EXPECT_GT(links, 1000);
  return cases;
}

struct Row {
  std::string name;
  /// Proves everything that the flow may be built from; returns the number of cases.
  std::function<int()> prove;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

std::vector<Row> rows() {
  std::vector<Row> all;
  for_each_flow([&]<class Flow>(Collective c, Algorithm a, const Flow& flow) {
    all.push_back({std::string(name(c)) + "_" + std::string(name(a)),
                   [c, flow] { return prove(c, flow, typename Flow::Data{}); }});
  });
  return all;
}

class Flows : public testing::TestWithParam<Row> {};

TEST_P(Flows, AreProvedForAllSizesAndRoots) {
  const int cases = GetParam().prove();
  RecordProperty("cases", cases);
  EXPECT_GE(cases, 64 * 2);
}

INSTANTIATE_TEST_SUITE_P(List, Flows, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

/// The documented precondition: slots >= 2. A forwarding hop holds its input slot until its output has room.
TEST(Window, OneSlotDeadlocksTheRings) {
  for (const int n : {3, 4, 8}) {
    const Program ring = record(Collective::all_reduce, RingAllReduce{}, n, 0, 1);
    EXPECT_NE(verify(ring, {1}).find("deadlock"), std::string::npos) << n;
    EXPECT_EQ(verify(ring, {2}), "") << n;
    const Program gather = record(Collective::all_gather, RingAllGather{}, n, 0, 1);
    EXPECT_NE(verify(gather, {1}).find("deadlock"), std::string::npos) << n;
  }
}

TEST(FlowList, NamesParseBack) {
  int flows = 0;
  for_each_flow([&](Collective c, Algorithm a, auto) {
    EXPECT_EQ(parse_algorithm(name(a)), a);
    EXPECT_TRUE(visit(c, a, [](auto) {}));
    ++flows;
  });
  EXPECT_EQ(flows, 55);
  EXPECT_FALSE(parse_algorithm("rings").has_value());
  EXPECT_FALSE(visit(Collective::barrier, Algorithm::ring, [](auto) {}));
}

/// The data given to a maker reaches the flows that are made from it, whichever name they are requested by.
TEST(FlowList, DataReachesTheFlows) {
  const std::vector<int> host_of = {0, 0, 1, 1, 1}, out = {3};
  const std::vector<std::pair<int, double>> in = {{2, 0.5}};
  const HostMap map(host_of);
  const FlowData data{map.view(), {0.25, in, out}};
  int on_hosts = 0, among_neighbours = 0;
  for_each_flow(
      [&]<class Flow>(Collective c, Algorithm a, const Flow& flow) {
        const auto check = [&](const Flow& same) {
          if constexpr (std::is_same_v<typename Flow::Data, HostLayout>) {
            EXPECT_EQ(same.hosts.order.size(), 5u);
          }
          if constexpr (std::is_same_v<typename Flow::Data, NeighbourRow>) {
            EXPECT_EQ(same.row.self, 0.25);
            EXPECT_EQ(same.row.in_neighbours.data(), in.data());
            EXPECT_EQ(same.row.out_neighbours.data(), out.data());
          }
        };
        on_hosts += std::is_same_v<typename Flow::Data, HostLayout>;
        among_neighbours += std::is_same_v<typename Flow::Data, NeighbourRow>;
        check(flow);
        EXPECT_TRUE(visit(
            c, a,
            [&]<class Other>(const Other& other) {
              if constexpr (std::is_same_v<Flow, Other>) check(other);
            },
            data));
        EXPECT_EQ(between_hosts(a), Flow::kBetweenHosts) << name(a);
      },
      data);
  EXPECT_EQ(on_hosts, 9);
  EXPECT_EQ(among_neighbours, 1);
}

}  // namespace
}  // namespace ouro::flow
