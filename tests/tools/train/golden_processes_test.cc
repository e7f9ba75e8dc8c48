// Reference runs as commands: decentralised training on real inputs, federated training on digits. The golden
// files define what is run and the expected results.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tests/golden_data.h"
#include "tests/tools/train/programs.h"

namespace ouro::test {
namespace {

using nlohmann::json;

constexpr int kSeconds = 120;  // limit of one run while other tests keep the processors busy

/// The mean of the last ten, or of all if there are fewer.
double last_ten(const std::vector<double>& losses) {
  const std::size_t n = std::min<std::size_t>(10, losses.size());
  double sum = 0;
  for (std::size_t k = losses.size() - n; k < losses.size(); ++k) sum += losses[k] / static_cast<double>(n);
  return sum;
}

void expect_near(double got, double want, double relative, const std::string& what) {
  EXPECT_LE(std::abs(got - want), relative * std::abs(want)) << what << ": " << got << " for " << want;
}

void decentralised(const std::string& model, const std::string& optimizer) {
  const std::string kind = "runs of ouro-train, " + model;
  CasesRun cases{kind};
  for_each_run("decent_dp_real_inputs.json", [&](int ranks, const std::string& name, const json& want) {
    NameParts parts(name);
    const std::string of = parts.first();
    if (of != "charlm" && of != "digits") parts.bad(of);
    if (of != model) return;
    const std::string topology = parts.first();
    const int local = parts.local_size(topology);
    parts.expect_none_left();
    cases.add(kind);
    const json report = report_of(
        ranks,
        fmt::format("{} --strategy decentralised --topology {} --optimizer {} --round-order "
                    "upstream --decay upstream-inverted{}",
                    model, topology, optimizer, local > 1 ? fmt::format(" --local-size {}", local) : ""),
        kSeconds);
    const json& trajectory = want.at("trajectory");
    std::vector<double> wanted;
    for (const json& step : trajectory) wanted.push_back(step[0]);
    const auto losses = report.at("losses").get<std::vector<double>>();
    ASSERT_EQ(losses.size(), wanted.size());
    expect_near(last_ten(losses), last_ten(wanted), 0.01, "last ten steps");
    for (std::size_t t = 0; t < losses.size(); ++t) {
      expect_near(losses[t], wanted[t], t <= 10 ? 1e-10 : 1e-8, fmt::format("loss of step {}", t));
      if (t > 0)  // the reference shows its first update one step later
        expect_near(report["consensus"][t], trajectory[t][1], 1e-6, fmt::format("consensus {}", t));
    }
    expect_near(report.at("final_norm"), want.at("final_param_l2"), 1e-8, "final norm");
    if (want.contains("test_acc")) expect_near(report.at("accuracy"), want["test_acc"], 1e-12, "accuracy");
  });
}

TEST(TrainGolden, CharlmRunsMatchTheRecord) { decentralised("charlm", "accum_adamw"); }
TEST(TrainGolden, DigitsRunsMatchTheRecord) { decentralised("digits", "accum_adam"); }

TEST(TrainGolden, FederatedDigitsRunsMatchTheRecord) {
  CasesRun cases{"runs of ouro-train, federated digits"};
  for_each_run("xffl_federated_digits.json", [&](int n, const std::string& name, const json& want) {
    NameParts parts(name);  // "[4, 2]/K5"
    const auto sizes = json::parse(parts.first()).get<std::vector<int>>();
    const int every = parts.required("K");
    parts.expect_none_left();
    cases.add("runs of ouro-train, federated digits");
    const json& trajectory = want.at("trajectory");
    const std::string site_list =
        sizes.size() == 1 ? "1" : fmt::format("{}", fmt::join(sizes, ","));  // "4" is four sites
    const json report = report_of(
        n,
        fmt::format(
            "digits --strategy federated --sites {} --local-steps {} --steps {} --batch {} --dtype f64",
            site_list, every, trajectory.size(), 8 * n),
        kSeconds);
    ASSERT_EQ(report.at("losses").size(), trajectory.size());
    EXPECT_EQ(report.at("sites"), json(sizes));
    for (std::size_t t = 0; t < trajectory.size(); ++t) {
      double mean = 0;
      for (const json& loss : trajectory[t][0]) mean += loss.get<double>() / n;
      expect_near(report["losses"][t], mean, t <= 10 ? 1e-10 : 1e-8, fmt::format("step {}", t));
    }
    // The report is about the average of the sites, the record about each site.
    if (trajectory.size() % static_cast<std::size_t>(every) == 0)
      expect_near(report.at("accuracy"), want.at("test_acc_per_rank")[0], 1e-9, "accuracy");
  });
}

}  // namespace
}  // namespace ouro::test
