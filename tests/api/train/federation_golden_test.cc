// Reference results of federated averaging: aggregated values, and training on digits at several sites.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ouro/train/federation.hpp"
#include "ouro/train/optim.hpp"
#include "ouro/train/outer.hpp"
#include "tests/api/train/federation_cases.h"
#include "tests/golden_data.h"
#include "tests/runtime/group/ranks.h"
#include "tools/models/mlp.h"

namespace ouro::train {
namespace {

using nlohmann::json;
using test::run_threads;

/// All numbers of nested lists, in order.
std::vector<double> flat(const json& values) {
  if (!values.is_array()) return {values.get<double>()};
  std::vector<double> all;
  for (const json& v : values)
    for (const double x : flat(v)) all.push_back(x);
  return all;
}

/// A key such as "[4, 2]/hsdp2", "[2, 2]/hsdpNone" or "[3, 1]/K5": the sizes of sites, and the number
/// after `word`.
struct Key {
  std::vector<int> sizes;
  std::optional<int> number;  // none: "None"
};
Key parse(const std::string& key, const std::string& word) {
  test::NameParts parts(key);
  Key parsed{.sizes = json::parse(parts.first()).get<std::vector<int>>(), .number = {}};
  if (!parts.flag(word + "None")) parsed.number = parts.required(word);
  parts.expect_none_left();
  return parsed;
}

std::string aggregates(Context& c, const Key& key, const json& recorded) {
  const double r = c.rank();
  for (const FederatedGroups kind : {FederatedGroups::senders, FederatedGroups::all_replicas})
    for (int streams = 1; streams <= 4; ++streams) {
      auto groups = test::groups_of(c, key.sizes, key.number, streams, kind);
      OURO_RANK_OK(groups);
      for (const Strategy strategy : test::kStrategies) {
        // Strategies that the file does not list have the same values as those that it lists.
        const json& all = recorded.contains(name(strategy)) ? recorded.at(name(strategy)) : recorded.front();
        const std::vector<double> want = flat(all.at(static_cast<std::size_t>(c.rank())));
        for (const bool planned : {false, true}) {
          test::NamedArrays<double> model;
          model.add("a", {r, r + 0.1, r + 0.2});
          model.add("b", std::vector<double>(4, 10 * r + 1));
          model.add("c", {(c.rank() % 2 == 0 ? 1 : -1) * (r + 1)});
          const AggregateOptions options{.strategy = strategy, .streams = streams};
          const auto params = model.params();
          if (planned) {
            auto plan = plan_aggregation(*groups, params, options);
            OURO_RANK_OK(plan);
            OURO_RANK_OK(plan->run());
          } else {
            OURO_RANK_OK(aggregate(*groups, params, options));
          }
          std::vector<double> got;
          for (std::size_t k = 0; k < model.size(); ++k)
            for (const double x : model.at(k)) got.push_back(x);
          OURO_RANK_CHECK(got.size() == want.size(), "{} numbers for {}", got.size(), want.size());
          for (std::size_t i = 0; i < got.size(); ++i)
            OURO_RANK_CHECK(std::abs(got[i] - want[i]) <= 1e-14 * std::abs(want[i]),
                            "{} {} {} streams: {} for {}", key.sizes, name(strategy), streams, got, want);
        }
      }
    }
  return "";
}

TEST(FederationGolden, AggregatedValuesMatchTheRecord) {
  test::CasesRun cases{"aggregated layouts", "strategies of aggregated layouts"};
  test::for_each_run("xffl_aggregation.json", [&](int n, const std::string& key, const json& recorded) {
    const Key parsed = parse(key, "hsdp");
    ASSERT_FALSE(recorded.empty());
    for (const auto& [strategy, values] : recorded.items()) {
      EXPECT_TRUE(std::any_of(std::begin(test::kStrategies), std::end(test::kStrategies),
                              [&](Strategy s) { return name(s) == strategy; }))
          << "no strategy is called " << strategy;
      cases.add("strategies of aggregated layouts");
    }
    EXPECT_EQ("", run_threads(n, [&](Context& c) { return aggregates(c, parsed, recorded); }));
    cases.add("aggregated layouts");
  });
}

// ---- digits ------------------------------------------------------------------------------------------

const models::Digits& digits() {
  static const models::Digits all = [] { return *models::load_digits(); }();
  return all;
}

/// Whether all members of the group have the same bits.
Result<bool> alike(Group& g, const std::vector<double>& x) {
  std::vector<double> all(x.size() * static_cast<std::size_t>(g.size()));
  OURO_TRY(all_gather(g, std::span<const double>(x), std::span<double>(all)));
  bool same = true;
  for (std::size_t at = 0; at < all.size(); at += x.size())
    same = same && std::memcmp(&all[at], x.data(), x.size() * sizeof(double)) == 0;
  return same;
}

bool close(double got, double want, std::size_t t) {
  return std::abs(got - want) <= (std::abs(want) < 1e-4 ? 1e-12 : (t <= 10 ? 1e-10 : 1e-8) * std::abs(want));
}

/// `outer`: through an outer optimiser that amounts to plain averaging (SGD with rate 1).
std::string trains(Context& c, const Key& key, const json& recorded, bool outer) {
  using models::Mlp;
  const std::int64_t every = key.number.value();
  auto groups = test::groups_of(c, key.sizes, 1, 1);
  OURO_RANK_OK(groups);
  const ParallelLayout& layout = groups->layout;
  std::vector<double> x = models::mlp_initial_parameters<double>(), g(x.size());
  const Param all[] = {{.name = "mlp", .value = std::span(x), .grad = std::span(g)}};
  auto inner = make_optimizer(SgdOptions{.lr = 0.2, .momentum = 0.9});
  OURO_RANK_OK(inner);
  auto server = make_optimizer(SgdOptions{.lr = 1});
  OURO_RANK_OK(server);
  auto local = LocalSteps::create(*groups, all, std::move(*server), {.inner_steps = every});
  OURO_RANK_OK(local);

  const auto f = static_cast<std::uint32_t>(layout.federation->rank);
  const auto sites = static_cast<std::uint32_t>(layout.federation->count);
  const auto n = static_cast<std::size_t>(layout.federation->sizes[f]);
  const auto q = static_cast<std::size_t>(layout.federation->local_rank);
  const std::uint32_t owned = (models::Digits::kTrainRows - f + sites - 1) / sites;
  const auto rank = static_cast<std::size_t>(c.rank());
  const json& trajectory = recorded.at("trajectory");
  for (std::size_t t = 0; t < trajectory.size(); ++t) {
    std::vector<std::uint32_t> rows;
    for (std::size_t k = 0; k < 8; ++k)
      rows.push_back(f + sites * static_cast<std::uint32_t>(((t * n + q) * 8 + k) % owned));
    std::fill(g.begin(), g.end(), 0.0);
    const double loss = models::mlp_add_gradients<double>(digits(), rows, x, g) / 8;
    for (double& v : g) v /= 8;
    const View gradient = std::span(g);
    OURO_RANK_OK(all_reduce(*groups->federation, gradient, gradient, ReduceOp::avg));
    OURO_RANK_OK((*inner)->step(all));
    const bool round = (static_cast<std::int64_t>(t) + 1) % every == 0;
    if (outer)
      OURO_RANK_OK(local->step());
    else if (round)
      OURO_RANK_OK(aggregate(*groups, all));
    auto same = alike(round && !outer ? c.world() : *groups->federation, x);
    OURO_RANK_OK(same);
    OURO_RANK_CHECK(*same, "step {}: ranks that should hold the same bits do not", t);
    double squares = 0, sum = 0;
    for (const double v : x) squares += v * v, sum += v;
    const double got[] = {loss, std::sqrt(squares), sum};
    for (std::size_t k = 0; k < 3; ++k) {
      const double want = trajectory[t][k][rank].get<double>();
      OURO_RANK_CHECK(close(got[k], want, t), "step {} {}: {} for {}", t,
                      recorded.at("columns")[k].get<std::string>(), got[k], want);
    }
  }
  int correct = 0;
  for (std::uint32_t row = models::Digits::kTrainRows; row < models::Digits::kRows; ++row)
    correct += models::mlp_predict<double>(digits(), row, x) == digits().labels[row];
  const double accuracy = correct / double{models::Digits::kTestRows};
  const double want = recorded.at("test_acc_per_rank")[rank].get<double>();
  OURO_RANK_CHECK(std::abs(accuracy - want) < 1e-9, "accuracy {} for {}", accuracy, want);
  return "";
}

TEST(FederationGolden, DigitsTrainingMatchesTheRecord) {
  test::CasesRun cases{"federated digits", "digits with an outer optimiser"};
  test::for_each_run("xffl_federated_digits.json", [&](int n, const std::string& key, const json& recorded) {
    const Key parsed = parse(key, "K");
    for (const bool outer : {false, true}) {
      EXPECT_EQ("", run_threads(n, [&](Context& c) { return trains(c, parsed, recorded, outer); }))
          << (outer ? "with an outer optimiser" : "");
      cases.add(outer ? "digits with an outer optimiser" : "federated digits");
    }
  });
}

}  // namespace
}  // namespace ouro::train
