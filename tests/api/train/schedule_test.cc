// Learning-rate schedules: the reference sequences, the points of their formulas, and what they refuse.
#include "ouro/train/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/golden_data.h"

namespace ouro::train {
namespace {

TEST(ScheduleGolden, CosineWithWarmupMatchesTheRecord) {
  test::CasesRun cases{"schedules", "rates"};
  for (const auto& c : test::golden("lr_cosine_warmup.json")) {
    cases.add("schedules");
    const auto make = [&](After after) {
      return cosine_with_warmup(c.at("lr"), c.at("t_max"), c.at("t_warmup"), c.at("cosine_eta_min"),
                                c.at("warmup_decay"), after);
    };
    auto periodic = make(After::periodic), hold = make(After::hold);
    ASSERT_TRUE(periodic.ok() && hold.ok());
    const std::int64_t end = c.at("t_warmup").get<std::int64_t>() + c.at("t_max").get<std::int64_t>();
    std::int64_t u = 0;
    for (const double want : c.at("lr_used_at_update")) {
      cases.add("rates");
      EXPECT_NEAR(periodic->lr(), want, std::max(1e-10 * want, 1e-12)) << "update " << u;
      if (u < end) {
        EXPECT_EQ(hold->at(u), periodic->at(u));
      } else {
        EXPECT_EQ(hold->at(u), c.at("cosine_eta_min"));
      }
      EXPECT_EQ(periodic->position(), u++);
      periodic->step();
    }
    periodic->seek(3);
    EXPECT_EQ(periodic->lr(), periodic->at(3));
  }
}

TEST(Schedule, NoWarmupBeginsWithTheRate) { EXPECT_EQ(cosine_with_warmup(0.5, 10, 0)->lr(), 0.5); }

TEST(Schedule, CopiesAreIndependent) {
  Schedule one = *cosine_with_warmup(0.5, 10, 5), other = one;
  one.step();
  EXPECT_EQ(one.position(), 1);
  EXPECT_EQ(other.position(), 0);
}

/// 3 epochs of 7 div 2 = 3 updates: T = 9; a warm-up of a third: w = 3.
TEST(Schedule, WarmupCosineDecayFollowsTheFormula) {
  const WarmupCosineOptions options{
      .peak = 0.3, .epochs = 3, .steps_per_epoch = 7, .accum = 2, .warmup_fraction = 0.34};
  const Schedule s = *warmup_cosine_decay(options);
  EXPECT_DOUBLE_EQ(s.at(0), 0.1);  // f(1) = peak / 3
  EXPECT_DOUBLE_EQ(s.at(1), 0.2);
  EXPECT_DOUBLE_EQ(s.at(2), 0.3);                        // f(3), where the cosine starts
  EXPECT_DOUBLE_EQ(s.at(5), 0.003 + (0.3 - 0.003) / 2);  // f(6), half way
  EXPECT_DOUBLE_EQ(s.at(8), 0.003);
  EXPECT_DOUBLE_EQ(s.at(1000), 0.003);
  // Fewer steps than are accumulated: one update in all.
  const Schedule one = *warmup_cosine_decay({.peak = 1, .epochs = 5, .steps_per_epoch = 3, .accum = 4});
  EXPECT_DOUBLE_EQ(one.at(0), 0.01);
}

TEST(Schedule, InvalidOptionsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(cosine_with_warmup(0.1, 0, 0).status().code(), Code::invalid);
  EXPECT_EQ(cosine_with_warmup(0.1, 10, -1).status().code(), Code::invalid);
  EXPECT_EQ(cosine_with_warmup(nan, 10, 1).status().code(), Code::invalid);
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}}) {
    EXPECT_EQ(warmup_cosine_decay({.steps_per_epoch = bad}).status().code(), Code::invalid);
    EXPECT_EQ(warmup_cosine_decay({.steps_per_epoch = 1, .accum = bad}).status().code(), Code::invalid);
  }
  EXPECT_EQ(warmup_cosine_decay({.epochs = -1, .steps_per_epoch = 1}).status().code(), Code::invalid);
  EXPECT_EQ(warmup_cosine_decay({.steps_per_epoch = 1, .warmup_fraction = 2}).status().code(), Code::invalid);
}

}  // namespace
}  // namespace ouro::train
