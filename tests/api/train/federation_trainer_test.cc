// The federated trainer of ouro-train as a function: the reference run, every server and delta, refusals.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/golden_data.h"
#include "tests/runtime/group/ranks.h"
#include "tools/train/federated.h"

namespace ouro::tools {
namespace {

using test::run_threads;

TEST(FederatedTrainerGolden, RunsMatchTheRecord) {
  test::CasesRun cases{"runs of the federated trainer"};
  const auto run = [&](int n, const std::string& name, const nlohmann::json& recorded) {
    test::NameParts parts(name);  // "[2, 2]/K5"
    const auto sizes = nlohmann::json::parse(parts.first()).get<std::vector<int>>();
    const int every = parts.required("K");
    parts.expect_none_left();
    const nlohmann::json& trajectory = recorded.at("trajectory");
    cases.add("runs of the federated trainer");
    EXPECT_EQ("", run_threads(n, [&](Context& c) -> std::string {
                auto report = train_federated(c, {.steps = static_cast<int>(trajectory.size()),
                                                  .batch = 8 * n,
                                                  .site_ranks = sizes,
                                                  .local_steps = every,
                                                  .dtype = DType::f64});
                OURO_RANK_OK(report);
                for (std::size_t t = 0; t < trajectory.size(); ++t) {
                  double mean = 0;
                  for (const nlohmann::json& loss : trajectory[t][0]) mean += loss.get<double>() / n;
                  OURO_RANK_CHECK(std::abs(report->losses[t] - mean) <= 1e-8 * mean, "step {}: {} for {}", t,
                                  report->losses[t], mean);
                }
                double squares = 0;
                for (const double x : report->parameters) squares += x * x;
                const double want = trajectory.back()[1][static_cast<std::size_t>(c.rank())];
                OURO_RANK_CHECK(std::abs(std::sqrt(squares) - want) <= 1e-8 * want, "{} for {}",
                                std::sqrt(squares), want);
                // The report is about the average of the sites, the record about each site.
                if (trajectory.size() % static_cast<std::size_t>(every) != 0) return "";
                const double accuracy = recorded.at("test_acc_per_rank")[0];
                OURO_RANK_CHECK(std::abs(report->test_accuracy - accuracy) < 1e-9, "{} for {}",
                                report->test_accuracy, accuracy);
                return "";
              }));
  };
  test::for_each_run("xffl_federated_digits.json", run);
}

TEST(FederatedTrainer, LearnsWithEveryServerAndDelta) {
  for (const Server server : {Server::avg, Server::adam, Server::yogi, Server::nesterov})
    for (const auto delta : {train::DeltaFormat::exact, train::DeltaFormat::bf16, train::DeltaFormat::int8})
      EXPECT_EQ("", run_threads(3, [&](Context& c) -> std::string {
                  auto report = train_federated(c, {.batch = 48,
                                                    .sites = 2,
                                                    .local_steps = 8,
                                                    .server = server,
                                                    .delta = delta,
                                                    .weigh_by_ranks = true});
                  OURO_RANK_OK(report);
                  OURO_RANK_CHECK(report->rounds == 30, "{} rounds", report->rounds);
                  OURO_RANK_CHECK(report->test_accuracy > 0.8, "server {} delta {}: accuracy {}",
                                  static_cast<int>(server), static_cast<int>(delta), report->test_accuracy);
                  return "";
                }));
}

TEST(FederatedTrainer, CutsRanksIntoSitesAndRefusesMoreSitesThanRanks) {
  EXPECT_EQ(*site_sizes(7, 3), (std::vector<int>{3, 2, 2}));
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              const auto text = [&](const TrainOptions& o) {
                const Status s = train_federated(c, o).status();
                return s.code() == Code::invalid ? s.failure()->text : "another class";
              };
              OURO_RANK_CHECK(text({.sites = 3}).find("--sites 3") == 0, "{}", text({.sites = 3}));
              OURO_RANK_CHECK(text({.sites = 0}).find("--sites 0") == 0, "sites 0");
              OURO_RANK_CHECK(text({.local_steps = 0}).find("--local-steps") == 0, "local steps");
              OURO_RANK_CHECK(text({.lr = 0}).find("--lr") == 0, "lr");
              return "";
            }));
}

}  // namespace
}  // namespace ouro::tools
