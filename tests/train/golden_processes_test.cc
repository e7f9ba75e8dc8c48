// Reference runs as commands: decentralised training on real inputs, federated training on digits. What is
// run and what it must give is read from the golden files.
#include <cmath>

#include "tests/golden_data.h"
#include "tests/train/programs.h"

namespace ouro::test {
namespace {

using nlohmann::json;

double last_ten(const std::vector<double>& losses) {
  double sum = 0;
  for (std::size_t k = losses.size() - 10; k < losses.size(); ++k) sum += losses[k] / 10;
  return sum;
}

void expect_near(double got, double want, double relative, const std::string& what) {
  EXPECT_LE(std::abs(got - want), relative * std::abs(want)) << what << ": " << got << " for " << want;
}

void decentralised(const std::string& model, const std::string& optimizer) {
  const json all = golden("decent_dp_real_inputs.json");
  int runs = 0;
  for (const auto& [ranks, by_name] : all.items()) {
    if (ranks.starts_with("_")) continue;
    for (const auto& [name, want] : by_name.items()) {
      if (!name.starts_with(model + "/")) continue;
      const std::string topology = name.substr(model.size() + 1);
      const json report =
          report_of(std::stoi(ranks),
                    fmt::format("{} --strategy decentralised --topology {} --optimizer {} --round-order "
                                "upstream --decay upstream-inverted{}",
                                model, topology, optimizer,
                                topology == "alternating-exp-ring" ? " --local-size 2" : ""));
      const json& trajectory = want.at("trajectory");
      std::vector<double> wanted;
      for (const json& step : trajectory) wanted.push_back(step[0]);
      const auto losses = report.at("losses").get<std::vector<double>>();
      ASSERT_EQ(losses.size(), wanted.size()) << name;
      expect_near(last_ten(losses), last_ten(wanted), 0.01, name + ", last ten steps");
      for (std::size_t t = 0; t < losses.size(); ++t) {
        expect_near(losses[t], wanted[t], t <= 10 ? 1e-10 : 1e-8,
                    fmt::format("{}, loss of step {}", name, t));
        if (t > 0)  // the reference shows its first update a step later
          expect_near(report["consensus"][t], trajectory[t][1], 1e-6,
                      fmt::format("{}, consensus {}", name, t));
      }
      expect_near(report.at("final_norm"), want.at("final_param_l2"), 1e-8, name + ", final norm");
      if (want.contains("test_acc"))
        expect_near(report.at("accuracy"), want["test_acc"], 1e-12, name + ", accuracy");
      ++runs;
    }
  }
  EXPECT_GE(runs, 4);
}

TEST(TrainGolden, Charlm) { decentralised("charlm", "accum_adamw"); }
TEST(TrainGolden, Digits) { decentralised("digits", "accum_adam"); }

TEST(TrainGolden, FederatedDigits) {
  const json all = golden("xffl_federated_digits.json");
  int runs = 0;
  for (const auto& [ranks, by_name] : all.items()) {
    if (ranks.starts_with("_")) continue;
    for (const auto& [name, want] : by_name.items()) {  // "[4, 2]/K5"
      const auto sizes = json::parse(name.substr(0, name.find('/'))).get<std::vector<int>>();
      const json& trajectory = want.at("trajectory");
      const int n = std::stoi(ranks);
      const json report = report_of(
          n, fmt::format(
                 "digits --strategy federated --sites {} --local-steps {} --steps {} --batch {} --dtype f64",
                 fmt::join(sizes, ","), name.substr(name.find('K') + 1), trajectory.size(), 8 * n));
      ASSERT_EQ(report.at("losses").size(), trajectory.size()) << name;
      EXPECT_EQ(report.at("sites"), json(sizes));
      for (std::size_t t = 0; t < trajectory.size(); ++t) {
        double mean = 0;
        for (const json& loss : trajectory[t][0]) mean += loss.get<double>() / n;
        expect_near(report["losses"][t], mean, t <= 10 ? 1e-10 : 1e-8, fmt::format("{}, step {}", name, t));
      }
      expect_near(report.at("accuracy"), want.at("test_acc_per_rank")[0], 1e-9, name);
      ++runs;
    }
  }
  EXPECT_GE(runs, 3);
}

}  // namespace
}  // namespace ouro::test
