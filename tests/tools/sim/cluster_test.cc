// Descriptions of clusters: what is read from JSON, and what is refused.
#include "tools/sim/cluster.h"

#include <gtest/gtest.h>

#include "runtime/plan/cost.h"
#include "tests/runtime/calibration/invented.h"
#include "tools/sim/predict.h"

namespace ouro::sim {
namespace {

constexpr const char* kGood = R"({"name": "mine", "ranks_per_node": 4,
  "intra": {"alpha_us": 1, "gap_us": 0.5, "gb_per_s": 100}, "inter": {"alpha_us": 4, "gb_per_s": 25},
  "board": {"alpha_us": 2, "gb_per_s": 200}, "local_gb_per_s": 500, "slots": 8, "slot_bytes": 65536})";

std::string with(std::string from, std::string to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ClusterFile, EveryFieldIsRead) {
  const Result<Cluster> c = parse_cluster(kGood);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->name, "mine");
  EXPECT_EQ(c->ranks_per_node, 4);
  EXPECT_DOUBLE_EQ(c->intra.alpha, 1e-6);
  EXPECT_DOUBLE_EQ(c->intra.gap, 0.5e-6);
  EXPECT_DOUBLE_EQ(c->inter.gap, 0);
  EXPECT_DOUBLE_EQ(c->inter.beta, 1e-9 / 25);
  EXPECT_DOUBLE_EQ(c->gamma, 1e-9 / 500);
  EXPECT_EQ(c->slots, 8);
  EXPECT_EQ(c->slot_bytes, 65536);
}

TEST(ClusterFile, WrongFieldsAreRefusedByName) {
  const std::pair<std::string, std::string> wrong[] = {
      {with("\"slots\": 8", "\"slots\": 1"), "slots"},
      {with("\"slots\": 8", "\"slots\": 2.5"), "slots"},
      {with("\"slots\": 8", "\"slot\": 8"), "slot"},
      {with("\"gap_us\": 0.5", "\"gap\": 0.5"), "gap"},
      {with("\"alpha_us\": 4, ", ""), "alpha_us"},
      {with("\"gb_per_s\": 25", "\"gb_per_s\": 0"), "gb_per_s"},
      {with("\"gb_per_s\": 25", "\"gb_per_s\": \"25\""), "gb_per_s"},
      {with("\"alpha_us\": 1", "\"alpha_us\": -1"), "alpha_us"},
      {with("\"ranks_per_node\": 4", "\"ranks_per_node\": -4"), "ranks_per_node"},
      {with("\"mine\"", "7"), "name"},
      {with("{\"alpha_us\": 2, \"gb_per_s\": 200}", "3"), "board"},
      {"[]", "object"},
      {"{", "JSON"},
  };
  for (const auto& [text, part] : wrong) {
    const Result<Cluster> c = parse_cluster(text);
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_EQ(c.status().reason(), Reason::invalid);
    EXPECT_NE(c.status().failure()->text.find(part), std::string::npos) << c.status().failure()->text;
  }
}

TEST(ClusterNames, AreFoundOrExplained) {
  for (const Cluster& c : known_clusters()) EXPECT_TRUE(find_cluster(c.name).ok());
  const Result<Cluster> none = find_cluster("no-such-cluster");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().failure()->text.find("nvlink-ndr"), std::string::npos);
  EXPECT_FALSE(find_cluster("/").ok());  // a directory can be opened, but not read
}

TEST(ClusterShapes, NodesAndRateAreParsed) {
  const Result<Cluster> even = find_cluster("2x4@1gbit"), odd = find_cluster("7+8@12.5gbit");
  ASSERT_TRUE(even.ok() && odd.ok());
  EXPECT_EQ(even->nodes, (std::vector<int>{4, 4}));
  EXPECT_TRUE(even->node_port && even->even());
  EXPECT_DOUBLE_EQ(even->inter.beta, 8e-9);
  EXPECT_EQ(odd->nodes, (std::vector<int>{7, 8}));
  EXPECT_FALSE(odd->even());
  EXPECT_EQ(odd->node_of(15)[6], 0);
  EXPECT_EQ(odd->node_of(15)[7], 1);
  for (const char* wrong :
       {"2x4@1", "2x4@gbit", "2x4@1gbits", "2x@1gbit", "0x4@1gbit", "2x4x2@1gbit", "7+@1gbit", "@1gbit",
        "2x4@-1gbit", "2x4@nangbit", "2000000x2@1gbit", "1 +2@1gbit", "2+-1@1gbit"}) {
    const Result<Cluster> c = find_cluster(wrong);
    ASSERT_FALSE(c.ok()) << wrong;
    EXPECT_EQ(c.status().reason(), Reason::invalid);
  }
}

TEST(ClusterFile, NodesMayHaveDifferentSizes) {
  const Result<Cluster> c =
      parse_cluster(with("\"ranks_per_node\": 4", "\"nodes\": [1, 5, 2], \"node_port\": true"));
  ASSERT_TRUE(c.ok()) << c.status().failure()->text;
  EXPECT_EQ(c->nodes, (std::vector<int>{1, 5, 2}));
  EXPECT_TRUE(c->node_port);
  for (const char* wrong :
       {"\"nodes\": []", "\"nodes\": [0]", "\"nodes\": [1.5]", "\"nodes\": 4", "\"nodes\": {\"a\": 1}",
        "\"nodes\": [4], \"ranks_per_node\": 4", "\"ranks_per_node\": 4, \"node_port\": 1"}) {
    EXPECT_FALSE(parse_cluster(with("\"ranks_per_node\": 4", wrong)).ok()) << wrong;
  }
}

/// The figures are those for 64 KiB between the farthest cores, with the kind of copy chosen there, which the
/// host's ranks use.
TEST(ClusterFile, CalibrationFileDescribesItsHost) {
  rt::Calibration c = rt::far_zen3();
  const Result<Cluster> host = parse_cluster(rt::to_json(c, "invented"));
  ASSERT_TRUE(host.ok()) << host.status().message();
  EXPECT_DOUBLE_EQ(host->staging.alpha, 190e-9);
  EXPECT_DOUBLE_EQ(host->staging.beta, 65536 / 13 * 1e-9 / 65536);
  EXPECT_DOUBLE_EQ(host->gamma, 2700e-9 / 65536);
  c.pair[0].copies[1][0] = {};
  EXPECT_FALSE(parse_cluster(rt::to_json(c, "invented")).ok());
  EXPECT_FALSE(parse_cluster(R"({"ouro_calibration": 1})").ok());
}

/// There is only one model: ouro-sim's prediction for a calibrated host is the one that chooses
/// algorithms there.
TEST(ClusterFile, CalibratedHostUsesTheLibrarysPrediction) {
  const rt::Calibration c = rt::far_zen3();
  const Result<Cluster> host = parse_cluster(rt::to_json(c, "invented"));
  ASSERT_TRUE(host.ok());
  for (const auto algorithm : {flow::Algorithm::direct, flow::Algorithm::pull, flow::Algorithm::zerocopy})
    for (const auto collective : {Collective::all_gather, Collective::broadcast}) {
      const Job job{.collective = collective, .algorithm = algorithm, .ranks = 4, .bytes = 1 << 20};
      const bool blocks = collective == Collective::all_gather;
      const auto ns = rt::predicted_ns(c, {.collective = collective,
                                           .algorithm = algorithm,
                                           .ranks = 4,
                                           .bytes = blocks ? 1u << 18 : 1u << 20,
                                           .afterwards = true});
      const Result<Prediction> p = predict(*host, job);
      ASSERT_TRUE(p.ok() && ns);
      EXPECT_TRUE(p->by_record);
      EXPECT_DOUBLE_EQ(p->seconds, *ns * 1e-9) << flow::name(algorithm);
    }
  const Result<Prediction> ring =
      predict(*host, {.algorithm = flow::Algorithm::ring, .ranks = 4, .bytes = 1 << 20});
  ASSERT_TRUE(ring.ok());
  EXPECT_FALSE(ring->by_record) << "links are not in the library's model";
}

}  // namespace
}  // namespace ouro::sim
