// Decentralised training of the digits network and of the character model, compared with the reference
// trajectories and with what those show about topologies. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/api/train/gossip_ranks.h"
#include "tests/golden_data.h"
#include "tools/train/decentralised.h"

namespace ouro::tools {
namespace {

using namespace ouro::test;  // NOLINT
using nlohmann::json;

std::string run(Context& c, TrainOptions o, const json& want, TrainReport& report) {
  const std::size_t all = want.at("trajectory").size();
  o.steps = static_cast<int>(all);
  if (OURO_TEST_TSAN) o.stop_after = std::min(o.steps, 12);
  auto made = train_decentralised(c, o);
  OURO_RANK_OK(made);
  for (std::size_t step = 0; step < made->losses.size(); ++step) {
    OURO_RANK_CLOSE(made->losses[step], want["trajectory"][step][0].get<double>(), step, "mean loss");
    if (step > 0)  // the reference shows its first update one step later
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

/// The recorded and the obtained values, up to the last step that was run.
struct Curves {
  std::vector<double> losses, consensus;
};
Curves curves(const json& want, std::size_t steps) {
  Curves c;
  for (std::size_t t = 0; t < steps; ++t)
    c.losses.push_back(want.at("trajectory")[t][0]), c.consensus.push_back(want["trajectory"][t][1]);
  return c;
}
struct Outcome {
  Curves wanted, got;
};

double last_ten(const Curves& c) {
  const std::size_t n = std::min<std::size_t>(10, c.losses.size());
  return std::accumulate(c.losses.end() - static_cast<std::ptrdiff_t>(n), c.losses.end(), 0.0) /
         static_cast<double>(n);
}
bool alike(const Curves& a, const Curves& b) {
  return std::abs(last_ten(a) - last_ten(b)) <= 0.05 * last_ten(b);
}
bool clearly_closer(const Curves& a, const Curves& b) {
  return a.consensus.back() < 0.99 * b.consensus.back();
}

/// ouro and the record agree on whether losses end alike, and on which of the two topologies ends with the
/// ranks closer together.
void expect_same_order(const Outcome& one, const Outcome& complete) {
  EXPECT_EQ(alike(one.got, complete.got), alike(one.wanted, complete.wanted));
  if (clearly_closer(complete.wanted, one.wanted)) {
    EXPECT_LT(complete.got.consensus.back(), one.got.consensus.back());
  }
}

void run_all(const std::string& model) {
  const std::string kind = "decentralised runs of " + model,
                    pairs = "topologies beside complete, runs of " + model;
  CasesRun cases{kind, pairs};
  std::map<int, std::map<std::string, Outcome>> outcomes;  // by number of ranks and topology
  for_each_run("decent_dp_real_inputs.json", [&](int ranks, const std::string& name, const json& want) {
    NameParts parts(name);
    const std::string of = parts.first();
    if (of != "digits" && of != "charlm") parts.bad(of);
    if (of != model) return;
    TrainOptions o{.model = model == "digits" ? SmallModel::digits : SmallModel::charlm};
    o.topology = parts.first();
    o.topology_options.local_world_size = parts.local_size(o.topology);
    parts.expect_none_left();
    o.order = train::RoundOrder::upstream;
    o.decay = train::DecayRule::upstream_inverted;
    o.bucket_mb = 0.01;
    cases.add(kind);
    TrainReport report;
    ASSERT_EQ(run_threads(ranks, [&](Context& c) { return run(c, o, want, report); }), "");
    outcomes[ranks][name] = {curves(want, report.losses.size()), {report.losses, report.consensus}};
  });
  for (const auto& [ranks, by_name] : outcomes) {
    const auto complete = by_name.find(model + "/complete");
    if (complete == by_name.end()) continue;
    for (const auto& [name, outcome] : by_name) {
      if (name == complete->first) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, name));
      cases.add(pairs);
      expect_same_order(outcome, complete->second);
    }
  }
}

TEST(GossipGolden, DigitsRunsMatchTheRecord) { run_all("digits"); }
TEST(GossipGolden, CharlmRunsMatchTheRecord) { run_all("charlm"); }

}  // namespace
}  // namespace ouro::tools
