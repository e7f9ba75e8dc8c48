// The small cases in which ouro corrects the original, and the layouts of buckets. The reference file is
// prose, so the cases are here; the figures are always from the project's own copy, whatever OURO_GOLDEN_DIR
// is. Ranks are threads.
#include <gtest/gtest.h>

#include "tests/api/train/gossip_ranks.h"
#include "tests/golden_data.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT
using nlohmann::json;

/// Two ranks with the loss 0.5 (x - (rank + 1))^2, starting at 0; returns x after each step.
Result<std::vector<double>> two_ranks(Context& c, GossipOptions o, int steps,
                                      bool clear_before_forward = false, int overflow_on_1_at = -1,
                                      std::vector<double>* scales = nullptr) {
  double x = 0, g = 0;
  auto made = GossipTrainer::create(
      c.world(), {{"x", std::span<double>(&x, 1), std::span<double>(&g, 1), {1}}}, {}, std::move(o));
  OURO_TRY(made.status());
  std::vector<double> trajectory = {0};
  for (int step = 0; step < steps; ++step) {
    if (clear_before_forward) g = 0;
    OURO_TRY(made->begin_step());
    if (!clear_before_forward) g = 0;
    const double scale = made->scale();
    g += scale * (*static_cast<const double*>(made->params()[0].value.data) - (c.rank() + 1));
    if (step == overflow_on_1_at && c.rank() == 1) g *= INFINITY;
    OURO_TRY(made->grad_ready(0));
    OURO_TRY(made->end_backward());
    trajectory.push_back(*static_cast<const double*>(made->params()[0].value.data));
    if (scales) scales->push_back(made->scale());
  }
  OURO_TRY(made->close());
  return trajectory;
}

/// Compares with the recorded list of a rank, from t = 1 on (the reference shows the first update one
/// step later).
std::string compare(const std::vector<double>& got, const json& want, const char* what) {
  for (std::size_t t = 1; t < want.size(); ++t)
    OURO_RANK_CHECK(std::abs(got[t + 1] - want[t].get<double>()) <= 1e-12, "{}, t = {}: {} in place of {}",
                    what, t, got[t + 1], want[t].get<double>());
  return "";
}

json quirks() { return golden("decent_dp_quirks.json", OURO_GOLDEN_DEFAULT); }

TEST(GossipQuirks, CorrectedQuirksMatchTheRecord) {
  const json all = quirks();
  const auto body = [&](Context& c) -> std::string {
    const std::string me = fmt::format("rank{}", c.rank());
    const Topology complete = *Topology::make("complete", 2);
    // The row is kept with the exchange.
    const json& custom = all.at("custom_topology_first_mix_mismatch");
    const Topology t = *Topology::from_rounds(2, {{{{0, 1}, 0.7}}, {{{0, 1}, 0.5}}});
    for (const bool upstream : {true, false}) {
      const auto x = two_ranks(c,
                               {.topology = t,
                                .optimizer = plain_sgd(0.1),
                                .order = upstream ? RoundOrder::upstream : RoundOrder::sequential},
                               4);
      OURO_RANK_OK(x);
      const json& want =
          custom.at("correct_x_after_backward")
              .at(upstream ? "round_order_upstream (1,3,4,...)" : "round_order_sequential (0,1,2,...)");
      if (auto wrong = compare(*x, want.at(me), upstream ? "upstream" : "sequential"); !wrong.empty())
        return wrong;
    }
    // The first gradient counts, whenever gradients are cleared.
    for (const bool before : {true, false}) {
      const auto x = two_ranks(c, {.topology = complete, .optimizer = plain_sgd(0.1)}, 4, before);
      OURO_RANK_OK(x);
      if (auto wrong =
              compare(*x, all.at("zero_grad_after_forward").at("x_after_backward").at(me), "cleared");
          !wrong.empty())
        return wrong;
    }
    // An overflow on one rank applies to all ranks, or, on request, only to that rank.
    for (const ScalerScope scope : {ScalerScope::all, ScalerScope::local}) {
      const json& want = all.at("scaler_inf_on_rank1_at_t2")
                             .at(scope == ScalerScope::all ? "correct_x_and_scale" : "x_and_scale")
                             .at(me);
      std::vector<double> scales;
      const auto x = two_ranks(c,
                               {.topology = complete,
                                .optimizer = plain_sgd(0.1),
                                .scaler = GradScaler{.scale = 4, .scope = scope}},
                               5, false, 2, &scales);
      OURO_RANK_OK(x);
      for (std::size_t step = 1; step < want.size(); ++step) {
        OURO_RANK_CHECK(std::abs((*x)[step + 1] - want[step][0].get<double>()) <= 1e-12,
                        "scope {}, t = {}: {}", static_cast<int>(scope), step, (*x)[step + 1]);
        OURO_RANK_CHECK(scales[step] == want[step][1].get<double>(), "scale {}", scales[step]);
      }
    }
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(GossipQuirks, BucketSizesMatchTheRecord) {
  const json want = quirks().at("buckets");
  std::vector<float> memory(1);
  std::vector<Param> params;
  std::vector<int> order;
  for (int layer = 5; layer >= 0; --layer)
    for (const std::size_t count : {std::size_t{100}, std::size_t{10000}}) {
      order.push_back(static_cast<int>(params.size()));
      params.push_back({fmt::format("{}", params.size()), View(memory.data(), count, DType::f32), {}});
    }
  for (const auto& [size, plan] : want.items()) {
    if (!size.ends_with("MB")) continue;
    const auto made = plan_buckets(params, order, std::stod(size));
    ASSERT_TRUE(made.ok());
    std::vector<std::size_t> lengths;
    for (const BucketLayout& b : *made) lengths.push_back(b.length);
    EXPECT_EQ(json(lengths), plan.at("block_sizes")) << size;
  }
}

TEST(Buckets, ParametersAreBucketedByTypeInTheGivenOrder) {
  const std::vector<Param> params = {{"a", View(nullptr, 33, DType::f32), {}},
                                     {"b", View(nullptr, 1, DType::f64), {}},
                                     {"c", View(nullptr, 0, DType::f32), {}},
                                     {"d", View(nullptr, 64, DType::f32), {}}};
  const auto plan = plan_buckets(params, std::vector<int>{3, 1, 2, 0}, 1024);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->size(), 2u);
  EXPECT_EQ((*plan)[0].params, (std::vector<int>{3, 2, 0}));
  EXPECT_EQ((*plan)[0].offsets, (std::vector<std::size_t>{0, 64, 64}));
  EXPECT_EQ((*plan)[0].length, 128u);
  EXPECT_EQ((*plan)[1].params, (std::vector<int>{1}));
  EXPECT_EQ(plan_buckets(params, std::vector<int>{0, 0}, 25).status().code(), Code::invalid);
  EXPECT_EQ(plan_buckets(params, std::vector<int>{4}, 25).status().code(), Code::invalid);
  EXPECT_EQ(plan_buckets(params, std::vector<int>{0}, -1).status().code(), Code::invalid);
}

}  // namespace
}  // namespace ouro::train
