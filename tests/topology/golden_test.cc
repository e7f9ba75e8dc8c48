// Topologies against the reference results of decent_dp_topologies.json: rounds, edges, weights, groups,
// contraction, refusals.
#include <gtest/gtest.h>

#include <algorithm>

#include "ouro/train/topology.hpp"
#include "tests/golden_data.h"

namespace ouro::train {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  int ranks = 0;
  TopologyOptions options;
};
/// "name/ws8/lws2"
Case parse(const std::string& key) {
  const auto ws = key.find("/ws"), lws = key.find("/lws");
  return {
      key.substr(0, ws), std::stoi(key.substr(ws + 3)), {.local_world_size = std::stoi(key.substr(lws + 4))}};
}

void expect_identity(const Topology& t) {
  EXPECT_EQ(t.period(), 1);
  EXPECT_EQ(t.matrix(0), std::vector<double>{1});
  EXPECT_EQ(t.contraction(), 0);
}

TEST(GoldenTopologies, AsInTheFile) {
  test::CasesRun run;
  const json file = test::golden("decent_dp_topologies.json");
  for (const auto& [key, want] : file.items()) {
    SCOPED_TRACE(key);
    const Case c = parse(key);
    const Result<Topology> made = Topology::make(c.name, c.ranks, c.options);
    if (want.contains("error")) {
      if (c.name == "ring") {  // refused by the original; here a ring of any length
        ASSERT_TRUE(made.ok()) << made.status().message();
        EXPECT_EQ(made->period(), c.ranks == 1 ? 1 : 3);
        run.add("topologies that the original refuses and ouro makes");
        continue;
      }
      EXPECT_EQ(made.status().code(), Code::invalid);
      run.add("refused topologies");
      continue;
    }
    ASSERT_TRUE(made.ok()) << made.status().message();
    if (want["period"] == 0) {  // no round at all in the original
      expect_identity(*made);
      run.add("topologies of one rank");
      continue;
    }
    ASSERT_EQ(made->period(), want["period"].get<int>());
    for (int k = 0; k < made->period(); ++k) {
      Round found;
      for (int r = 0; r < c.ranks; ++r) {
        const Result<Edge> edge = made->edge(k + 3 * made->period(), r);
        ASSERT_TRUE(edge.ok()) << edge.status().message();
        if (edge->ranks.front() == r) found.push_back(*edge);
      }
      Round expected;
      for (const json& e : want["rounds"][static_cast<std::size_t>(k)])
        expected.push_back({e["ranks"].get<std::vector<int>>(), e["weight"].get<double>()});
      std::sort(expected.begin(), expected.end(),
                [](const Edge& a, const Edge& b) { return a.ranks.front() < b.ranks.front(); });
      EXPECT_EQ(found, expected) << "round " << k;
      run.add("rounds");
    }
    std::vector<std::vector<int>> groups = made->groups();
    std::vector<int> everyone;
    for (int r = 0; r < c.ranks; ++r) everyone.push_back(r);
    groups.insert(groups.begin(), everyone);
    EXPECT_EQ(groups, want["groups_created_in_order"].get<std::vector<std::vector<int>>>());
    const double contraction = made->contraction();
    EXPECT_NEAR(contraction, want["contraction_per_period"].get<double>(), 1e-12);
    EXPECT_EQ(contraction < 1e-12, want["exact_average_per_period"].get<bool>());
    run.add("topologies");
  }
  EXPECT_GT(run.count("topologies"), 0);
  EXPECT_GT(run.count("refused topologies"), 0);
}

}  // namespace
}  // namespace ouro::train
