// Decentralised training of the digits network and of the character model against the reference trajectories,
// and what they say about topologies. Ranks are threads.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/golden_data.h"
#include "tests/trainers/gossip_ranks.h"
#include "tools/train/decentralised.h"

namespace ouro::tools {
namespace {

using namespace ouro::test;  // NOLINT
using nlohmann::json;

std::string run(Context& c, TrainOptions o, const json& want, TrainReport& report) {
  const std::size_t all = want.at("trajectory").size();
  o.steps = static_cast<int>(all);
  if (OURO_TEST_TSAN) o.stop_after = 12;
  auto made = train_decentralised(c, o);
  OURO_RANK_OK(made);
  for (std::size_t step = 0; step < made->losses.size(); ++step) {
    OURO_RANK_CLOSE(made->losses[step], want["trajectory"][step][0].get<double>(), step, "mean loss");
    if (step > 0)  // the reference shows its first update a step later
      OURO_RANK_CLOSE(made->consensus[step], want["trajectory"][step][1].get<double>(), step, "consensus");
  }
  OURO_RANK_CHECK(json(made->blocks) == want.at("blocks"), "{}", json(made->blocks).dump());
  if (made->losses.size() == all) {
    OURO_RANK_CLOSE(made->final_norm, want.at("final_param_l2").get<double>(), 99, "final norm");
    if (want.contains("test_acc")) {
      OURO_RANK_CHECK(std::abs(made->test_accuracy - want["test_acc"].get<double>()) < 1e-12, "accuracy {}",
                      made->test_accuracy);
      OURO_RANK_CLOSE(made->test_loss, want.at("test_loss").get<double>(), 99, "test loss");
    }
  }
  if (c.rank() == 0) report = std::move(*made);
  return "";
}

double last_ten(const TrainReport& r) {
  return std::accumulate(r.losses.end() - 10, r.losses.end(), 0.0) / 10;
}

void run_all(const std::string& model) {
  CasesRun cases;
  const json all = golden("decent_dp_real_inputs.json");
  for (const auto& [ranks, runs] : all.items()) {
    if (ranks.starts_with("_")) continue;
    std::map<std::string, TrainReport> reports;
    for (const auto& [name, want] : runs.items()) {
      if (!name.starts_with(model + "/")) continue;
      TrainOptions o{.model = model == "digits" ? SmallModel::digits : SmallModel::charlm};
      o.topology = name.substr(model.size() + 1);
      if (o.topology == "alternating-exp-ring") o.topology_options.local_world_size = 2;
      o.order = train::RoundOrder::upstream;
      o.decay = train::DecayRule::upstream_inverted;
      o.bucket_mb = 0.01;
      TrainReport& report = reports[o.topology];
      cases.add("decentralised runs of " + model);
      ASSERT_EQ(run_threads(std::stoi(ranks), [&](Context& c) { return run(c, o, want, report); }), "")
          << name;
    }
    for (const auto& [name, report] : reports) {
      EXPECT_NEAR(last_ten(report), last_ten(reports["complete"]), 0.05 * last_ten(reports["complete"]))
          << name;
      if (name == "ring" || name == "one-peer-exp") {
        EXPECT_LT(reports["complete"].consensus.back(), report.consensus.back()) << name;
      }
    }
  }
  EXPECT_GE(cases.count("decentralised runs of " + model), 4);
}

TEST(GossipGolden, Digits) { run_all("digits"); }
TEST(GossipGolden, Charlm) { run_all("charlm"); }

}  // namespace
}  // namespace ouro::tools
