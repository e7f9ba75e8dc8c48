// What topologies refuse, with the exact text: it names the round and the rank. Also user-defined topologies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "ouro/train/topology.hpp"

namespace ouro::train {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

template <class T>
std::string why(const Result<T>& r, Code code = Code::invalid) {
  EXPECT_FALSE(r.ok());
  if (r.ok()) return "";
  EXPECT_EQ(r.status().code(), code);
  return r.status().failure()->text;
}
std::string rounds(int n, std::vector<Round> r) { return why(Topology::from_rounds(n, std::move(r))); }
std::string matrices(int n, std::vector<double> w) { return why(Topology::from_matrices(n, w)); }
std::string made(std::string_view name, int n, const TopologyOptions& o = {}) {
  return why(Topology::make(name, n, o));
}

TEST(Refusals, InvalidRoundsAreNamed) {
  EXPECT_EQ(rounds(0, {}), "topology: 0 ranks; expected 1 to 1048576");
  EXPECT_EQ(rounds(2, {}), "topology: no round; expected at least one");
  const Round pair = {{{0, 1}, 0.5}};
  EXPECT_EQ(rounds(3, {pair}), "topology: round 0: rank 2 is in no edge; expected one");
  EXPECT_EQ(rounds(2, {pair, {}}), "topology: round 1: rank 0 is in no edge; expected one");
  EXPECT_EQ(rounds(2, {pair, {{{0, 1}, 0.5}, {{}, 1}}}),
            "topology: round 1: edge 1 is empty; expected at least one rank");
  EXPECT_EQ(rounds(2, {{{{0, 2}, 0.5}}}), "topology: round 0: rank 2 does not exist (0..1)");
  EXPECT_EQ(rounds(2, {{{{-1, 0}, 0.5}}}), "topology: round 0: rank -1 does not exist (0..1)");
  EXPECT_EQ(rounds(2, {{{{0, 1}, 0.5}, {{1}, 1}}}),
            "topology: round 0: rank 1 is named twice; expected once");
  EXPECT_EQ(rounds(2, {{{{1, 1}, 0.5}, {{0}, 1}}}),
            "topology: round 0: rank 1 is named twice; expected once");
  EXPECT_EQ(rounds(2, {pair, {{{0, 1}, 1.25}}}),
            "topology: round 1: the edge of rank 0 has weight 1.25; expected 0 to 1");
  EXPECT_THAT(rounds(2, {{{{0, 1}, NAN}}}), HasSubstr("weight nan; expected 0 to 1"));
  EXPECT_EQ(rounds(2, {{{{0}, 1}, {{1}, 0.5}}}),
            "topology: round 0: rank 1 is alone with weight 0.5; expected 1");
}

TEST(Refusals, UnconnectedRanksAreNamed) {
  const std::string apart =
      "topology: in none of its 1 rounds, nor through others, does rank 2 receive from rank 0; "
      "expected all ranks connected";
  EXPECT_EQ(rounds(4, {{{{0, 1}, 0.5}, {{2, 3}, 0.5}}}), apart);
  EXPECT_TRUE(
      Topology::from_rounds(4, {{{{0, 1}, 0.5}, {{2, 3}, 0.5}}, {{{0, 3}, 0.5}, {{1}, 1}, {{2}, 1}}}).ok());
  EXPECT_THAT(rounds(2, {{{{0, 1}, 1}}, {{{0}, 1}, {{1}, 1}}}), HasSubstr("none of its 2 rounds"));
  EXPECT_THAT(matrices(2, {1, 0, 0, 1}), HasSubstr("rank 1 receive from rank 0"));
  const double joined[] = {1, 0, 0, 1, .5, .5, .5, .5};
  EXPECT_TRUE(Topology::from_matrices(2, joined).ok());
  EXPECT_TRUE(Topology::from_rounds(1, {{{{0}, 1}}}).ok());
}

TEST(Refusals, InvalidMatricesAreNamed) {
  EXPECT_EQ(matrices(2, {1, 0, 0}), "topology: 3 entries; expected a multiple of 2 x 2, at least one matrix");
  EXPECT_EQ(matrices(2, {}), "topology: 0 entries; expected a multiple of 2 x 2, at least one matrix");
  EXPECT_EQ(matrices(2, {1.5, -.5, -.5, 1.5}),
            "topology: round 0: rank 0 takes -0.5 from rank 1; expected 0 or more");
  EXPECT_EQ(matrices(2, {1, 0, 0, 1, .5, .25, .5, .75}),
            "topology: round 1: the row of rank 0 sums to 0.75; expected 1");
  EXPECT_EQ(matrices(2, {.5, .5, 1, 0}), "topology: round 0: the column of rank 0 sums to 1.5; expected 1");
  EXPECT_EQ(matrices(1, {NAN}), "topology: round 0: rank 0 takes nan from rank 0; expected 0 or more");
}

TEST(Refusals, UnknownNamesAndWrongOptionsAreNamed) {
  EXPECT_THAT(made("rings", 4),
              StartsWith("topology 'rings' is not known; known: complete, ring, one-peer-exp, "));
  EXPECT_EQ(made("ring", 0), "ring: 0 ranks; expected 1 to 1048576");
  EXPECT_EQ(made("ring", 4, {.local_world_size = 3}), "ring: 4 ranks with 3 a node; expected a divisor of 4");
  EXPECT_EQ(made("base-k", 4, {.peers = 0}), "base-k: 0 peers; expected 1 or more");
  EXPECT_EQ(made("grid", 12, {.rows = 5}), "grid: 12 ranks in 5 rows; expected a divisor of 12, or 0");
  EXPECT_EQ(made("one-peer-exp", 6),
            "one-peer-exp: 6 ranks; expected a power of two; base-k and ceca-2p serve any number");
  EXPECT_EQ(made("alternating-exp-ring", 6, {.local_world_size = 2}),
            "alternating-exp-ring: 6 ranks with 2 a node make 3 nodes; expected 2, 4, 8, ...");
  EXPECT_TRUE(Topology::make("hypercuboid", 10, {.peers = std::numeric_limits<int>::max()}).ok());
  EXPECT_EQ(made("hypercuboid", 10, {.peers = 3}),
            "hypercuboid: 10 ranks have the prime factor 5; expected at most peers + 1 = 4; base-k serves "
            "any number");
}

TEST(Refusals, AccessorsRefuseWrongStepsAndRanks) {
  const Topology ring = *Topology::make("ring", 4), star = *Topology::make("star", 4),
                 ceca = *Topology::make("ceca-2p", 4);
  EXPECT_EQ(why(ring.edge(0, 4)), "topology: rank 4 does not exist (0..3)");
  EXPECT_EQ(why(star.edge(7, 0), Code::unsupported),
            "topology: the round of step 7 is not made of edges; row() has its weights");
  EXPECT_EQ(why(ring.pair(0, 0), Code::unsupported), "topology: one vector a rank; row() has its weights");
  EXPECT_EQ(why(ceca.pair(0, -1)), "topology: rank -1 does not exist (0..3)");
}

TEST(Registry, UserTopologiesAreMadeByTheirRegisteredName) {
  const auto backwards = [](int n, const TopologyOptions& o) -> Result<std::vector<Round>> {
    if (o.peers > 1) return invalid("backwards: one peer");
    if (n == 13) throw std::runtime_error("unlucky");
    Round round;
    for (int r = 0; r < n / 2; ++r) round.push_back({{n - 1 - r, r}, 0.75});
    if (n % 2 == 1) round.push_back({{n / 2}, 1});
    Edge all{{}, 0.5};
    for (int r = 0; r < n; ++r) all.ranks.push_back(r);
    return std::vector<Round>{round, {all}};
  };
  ASSERT_TRUE(register_topology("backwards", backwards).ok());
  const auto refused = [](const Status& s) { return s.ok() ? "" : s.failure()->text; };
  EXPECT_EQ(refused(register_topology("backwards", backwards)), "register_topology: 'backwards' is taken");
  EXPECT_EQ(refused(register_topology("ring", backwards)), "register_topology: 'ring' is taken");
  EXPECT_EQ(refused(register_topology("", backwards)), "register_topology: the name is empty");
  EXPECT_EQ(refused(register_topology("none", nullptr)), "register_topology: 'none' has no rule");
  const Result<Topology> t = Topology::make("backwards", 5);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(*t->edge(0, 0), (Edge{{0, 4}, 0.75}));
  EXPECT_EQ(made("backwards", 4, {.peers = 2}), "backwards: one peer");
  EXPECT_EQ(made("backwards", 13), "backwards: its rule threw: unlucky");
  EXPECT_EQ(topologies().back().name, "backwards");
  EXPECT_THAT(made("forwards", 4), HasSubstr("star, backwards"));
}

}  // namespace
}  // namespace ouro::train
