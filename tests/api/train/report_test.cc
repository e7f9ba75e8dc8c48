// Reports on timings as text; descriptions of the job; printing on one rank.
#include "ouro/train/report.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/golden_data.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

TEST(ReportGolden, ReportsMatchTheRecord) {
  test::CasesRun cases{"ranks with timings", "steps with an imbalance"};
  // The order of steps matters, so the file is read in its order.
  const auto golden = test::golden<nlohmann::ordered_json>("torchgfn_behaviour.json");
  if (!golden.contains("timing")) return;
  std::vector<Timings> ranks;
  for (const auto& rank : golden.at("timing")) {
    auto& mine = ranks.emplace_back();
    for (const auto& [step, seconds] : rank.items())
      mine.emplace_back(step, seconds.get<std::vector<double>>());
    cases.add("ranks with timings");
  }
  const auto imbalance = load_imbalance(ranks);
  ASSERT_TRUE(imbalance.ok()) << imbalance.status().message();
  EXPECT_EQ(lines_of(imbalance->text()),
            golden.at("report_load_imbalance_log").get<std::vector<std::string>>());
  const auto& numbers = golden.at("load_imbalance_numbers");
  ASSERT_EQ(imbalance->steps.size(), numbers.size());
  for (const Imbalance& i : imbalance->steps) {
    EXPECT_NEAR(i.useful, numbers.at(i.step).at("useful"), 1e-12) << i.step;
    EXPECT_NEAR(i.waiting, numbers.at(i.step).at("waiting"), 1e-12) << i.step;
    cases.add("steps with an imbalance");
  }
  const auto info = time_info(ranks);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(lines_of(info->text()), golden.at("report_time_info_log").get<std::vector<std::string>>());
}

bool refused(const std::vector<Timings>& ranks) {
  const bool one = load_imbalance(ranks).status().code() == Code::invalid;
  EXPECT_EQ(time_info(ranks).status().code() == Code::invalid, one);
  return one;
}

/// Where the original fails, ouro refuses.
TEST(ReportGolden, RefusalsMatchTheRecord) {
  test::CasesRun cases{"refused timings", "timings that cannot be written down"};
  const auto golden = test::golden("torchgfn_behaviour.json");
  if (!golden.contains("errors")) return;
  for (const auto& [what, error] : golden["errors"].items()) {
    if (what == "scalar_times") {  // seconds must be a list for each type
      cases.add("timings that cannot be written down");
      continue;
    }
    cases.add("refused timings");
    if (what == "ragged_iterations") {
      EXPECT_TRUE(refused({{{"a", {1, 2}}}, {{"a", {1}}}}));
    } else if (what == "empty_list") {
      EXPECT_TRUE(refused({{{"a", {}}}}));
    } else {
      ADD_FAILURE() << "no test knows the error '" << what << "'";
    }
  }
}

TEST(Reports, SkippedStepsAreReportedInTheirPlaces) {
  const Timings first{{"x", {1}}, {"a", {1, 2}}, {"y", {1}}, {"b", {3}}}, second{{"b", {5}}, {"a", {3, 2}}};
  const Timings ranks[] = {first, second};
  const auto report = *load_imbalance(ranks);
  const auto lines = lines_of(report.text());
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_NE(lines[2].find("'x' not found"), std::string::npos);
  EXPECT_NE(lines[4].find("'y' not found"), std::string::npos);
  ASSERT_EQ(report.steps.size(), 2u);
  EXPECT_EQ(report.steps[0].useful, 4);
  EXPECT_EQ(report.steps[0].waiting, 1);
  EXPECT_EQ(report.steps[1].useful, 4);
  EXPECT_EQ(report.steps[1].waiting, 1);
}

TEST(Reports, InvalidTimingsAreRefused) {
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{{"a", {}}}}));
  EXPECT_TRUE(refused({{{"a", {1, 2}}}, {{"a", {1}}}}));
  EXPECT_TRUE(refused({{{"a", {1}}, {"a", {1}}}}));
  EXPECT_FALSE(refused({{{"a", {1}}}, {}}));
}

TEST(Job, FirstEnvReturnsTheFirstVariableThatIsNotEmpty) {
  setenv("OURO_TEST_EMPTY", "", 1);
  setenv("OURO_TEST_SECOND", "2", 1);
  setenv("OURO_TEST_THIRD", "3", 1);
  const char* const names[] = {"OURO_TEST_ABSENT", "OURO_TEST_EMPTY", "OURO_TEST_SECOND", "OURO_TEST_THIRD"};
  EXPECT_EQ(first_env(names), "2");
  EXPECT_EQ(first_env({names, 2}), std::nullopt);
  for (const char* name : names) unsetenv(name);
}

TEST(Job, TorchrunIsDetectedByAllItsVariables) {
  const char* const names[] = {"LOCAL_RANK",         "RANK",
                               "GROUP_RANK",         "ROLE_RANK",
                               "LOCAL_WORLD_SIZE",   "WORLD_SIZE",
                               "ROLE_WORLD_SIZE",    "MASTER_ADDR",
                               "MASTER_PORT",        "TORCHELASTIC_RESTART_COUNT",
                               "TORCHELASTIC_RUN_ID"};
  for (const char* name : names) setenv(name, "", 1);  // existing is enough
  EXPECT_TRUE(launched_by_torchrun());
  for (const char* name : names) {
    unsetenv(name);
    EXPECT_FALSE(launched_by_torchrun()) << name;
    setenv(name, "1", 1);
  }
  for (const char* name : names) unsetenv(name);
}

TEST(Job, CallsWithoutAJobActAsASingleRank) {
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "5", 1);
  Context none;
  EXPECT_EQ(dist_info(none), DistInfo{});
  EXPECT_TRUE(safe_barrier(none).ok());
  testing::internal::CaptureStdout();
  EXPECT_TRUE(print_on(none, Rank{7}, "by rank"));
  EXPECT_TRUE(print_on(none, LocalRank{7}, "by local rank"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "by rank\nby local rank\n");
  unsetenv("RANK"), unsetenv("WORLD_SIZE");
}

/// Two jobs of two ranks on one host: each sums its own ranks only, whatever the other does.
TEST(Job, TwoJobsOnOneHostDoNotMix) {
  std::vector<std::string> wrong(4);
  std::array<UniqueId, 2> ids = {*UniqueId::create(), *UniqueId::create()};
  std::vector<std::jthread> ranks;
  for (std::size_t k = 0; k < wrong.size(); ++k)
    ranks.emplace_back([&, k] {
      const auto job = static_cast<int>(k) / 2;
      const auto work = [&]() -> std::string {
        InitOptions o = test::quick_options();
        o.rank = static_cast<int>(k) % 2, o.world_size = 2;
        o.id = ids[k / 2];
        auto c = Context::create(o);
        OURO_RANK_OK(c);
        OURO_RANK_CHECK((dist_info(*c) == DistInfo{*o.rank, *o.rank, 2, 2}), "job {}", job);
        for (int round = 0; round < 200; ++round) {
          int sum = 1000 * job + round;
          OURO_RANK_OK(all_reduce(c->world(), std::span<const int>(&sum, 1), std::span(&sum, 1)));
          OURO_RANK_CHECK(sum == 2 * (1000 * job + round), "job {}, round {}: {}", job, round, sum);
        }
        OURO_RANK_OK(c->close());
        return "";
      };
      wrong[k] = work();
    });
  ranks.clear();  // joins
  EXPECT_EQ(wrong, std::vector<std::string>(4));
}

TEST(Job, RankInfoAndPrintsFollowTheRank) {
  testing::internal::CaptureStdout();
  const std::string wrong = test::run_threads(3, [](Context& c) -> std::string {
    OURO_RANK_CHECK((dist_info(c) == DistInfo{c.local_rank(), c.rank(), 3, 3}), "rank {}", c.rank());
    OURO_RANK_CHECK(print_on(c, Rank{1}, "once") == (c.rank() == 1), "rank {}", c.rank());
    OURO_RANK_CHECK(!print_on(c, Rank{3}, "never"), "rank {}", c.rank());
    OURO_RANK_OK(safe_barrier(c));
    OURO_RANK_OK(c.close());
    OURO_RANK_CHECK(dist_info(c) == DistInfo{}, "after close");
    OURO_RANK_OK(safe_barrier(c));
    return "";
  });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "once\n");
  EXPECT_EQ(wrong, "");
}

}  // namespace
}  // namespace ouro::train
