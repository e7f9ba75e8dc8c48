// Topologies compared with the reference results of decent_dp_topologies.json: rounds, edges, weights,
// groups, contraction, refusals.
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
  test::NameParts parts(key);
  Case c{.name = parts.first()};
  c.ranks = parts.required("ws");
  c.options.local_world_size = parts.integer("lws").value_or(1);
  parts.expect_none_left();
  return c;
}

void expect_identity(const Topology& t) {
  EXPECT_EQ(t.period(), 1);
  EXPECT_EQ(t.matrix(0), std::vector<double>{1});
  EXPECT_EQ(t.contraction(), 0);
}

TEST(GoldenTopologies, TopologiesMatchTheRecord) {
  test::CasesRun run{"topologies", "topologies of one rank", "rounds", "refused topologies",
                     "topologies that the original refuses and ouro makes"};
  const json file = test::golden("decent_dp_topologies.json");
  for (const auto& [key, want] : file.items()) {
    SCOPED_TRACE(key);
    const Case c = parse(key);
    const Result<Topology> made = Topology::make(c.name, c.ranks, c.options);
    if (want.contains("error")) {
      if (c.name == "ring") {  // the original refuses it; here a ring of any length is allowed
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
    if (want["period"] == 0) {  // the original has no round at all
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
}

}  // namespace
}  // namespace ouro::train
