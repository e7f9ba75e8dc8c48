// What federated averages refuse, on every rank of the layout, and the effect of a rank that has left on
// the others.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "ouro/train/federation.hpp"
#include "tests/api/train/federation_cases.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::train {
namespace {

using test::run_threads;

/// Comparisons use the groups that means on the stream may still be using.
TEST(Aggregate, SuccessiveCallsOnOneStreamDoNotInterfere) {
  EXPECT_EQ("", run_threads(4, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {2, 2}, 1, 1);
              OURO_RANK_OK(groups);
              std::vector<float> x(1 << 16, static_cast<float>(c.rank())), y(100, 1.0f);
              const Param px{.name = "x", .value = std::span(x), .grad = {}};
              const Param py{.name = "y", .value = std::span(y), .grad = {}};
              Stream stream = *Stream::create();
              for (int round = 0; round < 20; ++round)
                for (const Param* p : {&px, &py}) OURO_RANK_OK(aggregate(*groups, {p, 1}, {}, stream));
              OURO_RANK_OK(stream.synchronize());
              OURO_RANK_CHECK(x[0] == x[1] && y[5] == 1, "{} {}", x[0], y[5]);
              return "";
            }));
}

TEST(Aggregate, SiteOfWeightZeroIsLeftOutEvenIfItHasNan) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, 1, 1);
              OURO_RANK_OK(groups);
              std::vector<float> x(10, c.rank() == 0 ? std::nanf("") : 3.0f);
              const Param p{.name = "x", .value = std::span(x), .grad = {}};
              OURO_RANK_OK(aggregate(*groups, {&p, 1}, {.site_weights = {0, 1}}));
              for (const float v : x) OURO_RANK_CHECK(v == 3, "{}", v);
              return "";
            }));
}

/// A rank leaves its site; the ranks of the other site share no group with it.
TEST(AggregateFailure, FailureOfOneSiteIsReportedToTheOther) {
  const auto start = std::chrono::steady_clock::now();
  for (const bool first_run : {true, false})
    EXPECT_EQ("", run_threads(4, [&](Context& c) -> std::string {
                auto groups = test::groups_of(c, {2, 2}, 1, 1);
                OURO_RANK_OK(groups);
                std::vector<float> x(1000, 1.0f);
                const Param p{.name = "x", .value = std::span(x), .grad = {}};
                auto plan = plan_aggregation(*groups, {&p, 1});
                OURO_RANK_OK(plan);
                if (!first_run) OURO_RANK_OK(plan->run());
                OURO_RANK_OK(barrier(c.world()));
                if (c.rank() == 3) return "";
                Status s = plan->run();
                for (int i = 0; i < 500 && s.ok(); ++i)
                  s = plan->run();  // a sender may run ahead of its receivers
                OURO_RANK_CHECK(!s.ok() && s.reason() != Reason::deadline, "{}", s.message());
                OURO_RANK_CHECK(s.message().find("rank") != std::string::npos, "{}", s.message());
                return "";
              }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, test::kHang);
}

TEST(AggregateRefuses, WrongArguments) {
  EXPECT_EQ("", run_threads(1, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1}, {}, 2);
              OURO_RANK_OK(groups);
              std::vector<double> x(4);
              std::vector<std::int32_t> integers(4);
              const Param good{.name = "w", .value = std::span(x), .grad = {}};
              const auto plan = [&](Param p, const AggregateOptions& o) {
                return plan_aggregation(*groups, {&p, 1}, o).status();
              };
              const auto says = [](const Status& s, const char* text) {
                return s.code() == Code::invalid && s.failure()->text.find(text) != std::string::npos;
              };
              const auto with = [&](auto&& change) {
                Param p = good;
                change(p);
                return p;
              };
              const double nan = std::nan("");
              OURO_RANK_CHECK(says(plan(good, {.streams = 0}), "0 streams"), "streams 0");
              OURO_RANK_CHECK(says(plan(good, {.streams = 3}), "groups for 1 to 2"), "streams 3");
              OURO_RANK_CHECK(says(plan(good, {.strategy = static_cast<Strategy>(9)}), "no such strategy"),
                              "strategy");
              OURO_RANK_CHECK(says(plan(good, {.site_weights = {1, 1}}), "2 site weights for 1 sites"),
                              "two weights");
              OURO_RANK_CHECK(says(plan(good, {.site_weights = {-1}}), "site 0 has weight -1"), "negative");
              OURO_RANK_CHECK(says(plan(good, {.site_weights = {nan}}), "site 0 has weight nan"), "nan");
              OURO_RANK_CHECK(says(plan(good, {.site_weights = {0}}), "add up to 0"), "zero");
              OURO_RANK_CHECK(says(plan(with([&](Param& p) { p.value = std::span(integers); }), {}),
                                   "'w' is of type int32"),
                              "integers");
              OURO_RANK_CHECK(says(plan(with([](Param& p) { p.value.data = nullptr; }), {}), "null pointer"),
                              "null");
              OURO_RANK_CHECK(says(plan(with([](Param& p) {
                                          p.shape = {3, 2};
                                        }),
                                        {}),
                                   "its shape (3,2) 6"),
                              "strides");
              const Param overlapping[] = {good, {.name = "v", .value = std::span(x).subspan(1), .grad = {}}};
              OURO_RANK_CHECK(says(plan_aggregation(*groups, overlapping).status(), "share memory in part"),
                              "overlap");
              group_start();
              auto planned = plan_aggregation(*groups, {&good, 1});
              const Status inside = planned->run();
              OURO_RANK_OK(group_end());
              OURO_RANK_CHECK(says(inside, "inside group_start"), "group_start");
              return "";
            }));
}

/// One rank differs: every rank of the layout gets an error, and the groups stay usable.
TEST(AggregateRefuses, DifferingArgumentsOnEveryRank) {
  using Change = void (*)(std::vector<Param>&, AggregateOptions&);
  const Change changes[] = {
      [](std::vector<Param>& p, AggregateOptions&) { std::swap(p[0], p[1]); },
      [](std::vector<Param>& p, AggregateOptions&) { p.pop_back(); },
      [](std::vector<Param>& p, AggregateOptions&) { p[0].value.count /= 2; },
      [](std::vector<Param>& p, AggregateOptions&) { p[0].value.dtype = DType::f32, p[0].value.count /= 2; },
      [](std::vector<Param>& p, AggregateOptions&) { p[0].name = "other"; },
      [](std::vector<Param>& p, AggregateOptions&) {
        p[0].shape = {2, 2};
      },
      [](std::vector<Param>& p, AggregateOptions&) { p[0].shape = {99}; },  // refused on that rank itself
      [](std::vector<Param>&, AggregateOptions& o) { o.strategy = Strategy::layer_by_layer; },
      [](std::vector<Param>&, AggregateOptions& o) {
        o.site_weights = {1, 2};
      },
      [](std::vector<Param>&, AggregateOptions& o) { o.streams = 2; },
  };
  for (const int odd : {0, 1, 2, 5})
    EXPECT_EQ("", run_threads(6, [&](Context& c) -> std::string {
                auto groups = test::groups_of(c, {4, 2}, 2, 2);
                OURO_RANK_OK(groups);
                for (const Change change : changes) {
                  test::NamedArrays<double> model;
                  model.add("a", {1, 2, 3, 4}), model.add("b", {1, 2, 3, 4});
                  auto params = model.params();
                  AggregateOptions o;
                  if (c.rank() == odd) change(params, o);
                  const Status s = aggregate(*groups, params, o);
                  OURO_RANK_CHECK(s.code() == Code::invalid, "odd rank {}, change {}: {}", odd,
                                  &change - changes, s.ok() ? "ok" : s.message());
                  OURO_RANK_CHECK(model.at(0)[0] == 1, "something was averaged");
                }
                test::NamedArrays<double> model;
                model.add("a", {static_cast<double>(c.rank() < 4)});
                OURO_RANK_OK(aggregate(*groups, model.params()));
                OURO_RANK_CHECK(model.at(0)[0] == 0.5, "{}", model.at(0)[0]);
                return "";
              }));
}

TEST(AggregateRefuses, LayoutsThatDoNotFitTheWorld) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              for (const std::vector<int>& sizes : {std::vector<int>{4, 2}, {2, 1}, {1}}) {
                const Status s = test::groups_of(c, sizes, 1, 1).status();
                OURO_RANK_CHECK(s.code() == Code::invalid, "{}: {}", sizes, s.ok() ? "ok" : s.message());
              }
              return "";
            }));
}

/// A rank dies before or between the stages: no rank waits for it until the deadline, and no site takes a
/// partial mean for a complete one.
TEST(AggregateFails, OnEveryRankWhenARankLeaves) {
  EXPECT_EQ("", run_threads(6, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {4, 2}, 2, 1);
              OURO_RANK_OK(groups);
              test::NamedArrays<float> model;
              model.add("w", std::vector<float>(2'000'000, static_cast<float>(c.rank())));
              auto plan = plan_aggregation(*groups, model.params(), {});
              OURO_RANK_OK(plan);
              OURO_RANK_OK(plan->run());
              OURO_RANK_OK(barrier(c.world()));
              // Rank 4 is a sender of shard 0, whose column is 0, 2, 4.
              if (c.rank() == 4) return c.close().ok() ? "" : "close";
              const Status s = plan->run();
              if (c.rank() % 2 == 0) OURO_RANK_CHECK(!s.ok(), "the mean of shard 0 without its second site");
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
