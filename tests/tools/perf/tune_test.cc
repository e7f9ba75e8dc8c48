// The tuner's decisions, without a clock: who wins, the resulting rows, merging them into a file; then races
// of real ranks. Run by ctest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tools/perf/race.h"
#include "tools/perf/tune_rules.h"

namespace ouro::perf {
namespace {

using flow::Algorithm;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> texts(const std::vector<rt::Rule>& rows) {
  std::vector<std::string> all;
  for (const rt::Rule& r : rows) all.push_back(rt::to_text(r));
  return all;
}

TEST(Winner, HasToBeAheadByMoreThanTheMargin) {
  const Trial usual{"usual", {10, 10, 10, 10}}, same{"same", {9.8, 9.8, 9.8, 9.8}},
      fast{"fast", {9, 9, 9, 9}};
  EXPECT_EQ(winner(std::vector{usual, same}, 0, 0.03), 0u);
  EXPECT_EQ(winner(std::vector{usual, fast}, 0, 0.03), 1u);
  EXPECT_EQ(winner(std::vector{usual, fast, same}, 2, 0.03), 1u);
  EXPECT_EQ(winner(std::vector{fast, usual}, 0, 0.03), 0u);
  EXPECT_EQ(winner(std::vector{usual}, 0, 0.03), 0u);
}

TEST(Winner, HasToBeAheadInMostRounds) {
  const Trial usual{"usual", {10, 10, 10, 20, 20}}, lucky{"lucky", {11, 11, 5, 5, 5}};
  EXPECT_GT(ratio(usual, lucky), 1.03);
  EXPECT_DOUBLE_EQ(share_ahead(usual, lucky), 0.6);
  EXPECT_EQ(winner(std::vector{usual, lucky}, 0, 0.03), 0u);
}

TEST(Winner, IsNeverAnAbandonedTrial) {
  const Trial usual{"usual", {10, 10, 10}}, hopeless{"hopeless", {}, 1};
  EXPECT_EQ(winner(std::vector{usual, hopeless}, 0, 0.03), 0u);
}

TEST(Winner, RatioIsTheMedianOfSameRounds) {  // the machine was slow in two rounds
  EXPECT_DOUBLE_EQ(ratio({"a", {2, 20, 2, 20}}, {"b", {1, 10, 1, 10}}), 2);
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({}), 0);
}

TEST(Rows, ChangeHalfWayBetweenSizes) {
  const Scope scope{Collective::all_reduce, rt::Buffers::private_, rt::Cores::enough, 4};
  const std::vector<Winner> winners = {{8, Algorithm::inlined},
                                       {64, Algorithm::oneshot},
                                       {256, Algorithm::oneshot},
                                       {1024, Algorithm::direct}};
  const auto rows = rows_of(scope, winners);
  EXPECT_THAT(texts(rows), ElementsAre("all_reduce@private<=22:inline", "all_reduce@private<=512:oneshot",
                                       "all_reduce@private<=1024:direct"));
  for (const rt::Rule& r : rows) {
    EXPECT_EQ(r.min_ranks, 4);
    EXPECT_EQ(r.max_ranks, 4);
    EXPECT_EQ(r.cores, rt::Cores::enough);
  }
  const Winner only{0, Algorithm::dissemination};
  EXPECT_THAT(texts(rows_of({Collective::barrier, rt::Buffers::any, rt::Cores::fewer, 2}, {&only, 1})),
              ElementsAre("barrier:dissemination"));
  EXPECT_TRUE(rows_of(scope, {}).empty());
}

TEST(Threshold, IsTheLeastSizeFromWhichStreamingPays) {
  const auto threshold = [](std::vector<StreamPoint> points, std::size_t old = 0) {
    return stream_threshold(points, 0.03, 1000, old);
  };
  EXPECT_EQ(threshold({{1000, 0.5}, {2000, 1.1}, {4000, 1.2}}), 2000u);
  EXPECT_EQ(threshold({{1000, 1.2}, {2000, 1.02}, {4000, 1.2}}), 4000u) << "lost in between";
  EXPECT_EQ(threshold({{1000, 1.2}, {2000, 1.2}}), 1000u);
  EXPECT_EQ(threshold({{1000, 1.2}, {2000, 1.03}}), 4000u) << "nowhere: above what was measured";
  EXPECT_EQ(threshold({{100, 0.5}}), 0u) << "not measured up to the cache: as without a file";
  EXPECT_EQ(threshold({}), 0u);
  EXPECT_EQ(threshold({{100, 0.5}}, 500), 500u) << "nothing speaks against what was found before";
  EXPECT_EQ(threshold({{1000, 0.5}}, 500), 2000u) << "something does";
  EXPECT_EQ(threshold({{100, 1.5}}, 500), 100u);
}

rt::Rule row(const char* text, int ranks, rt::Cores cores) {
  rt::Rule r = rt::parse_rules(text)->at(0);
  r.min_ranks = r.max_ranks = ranks;
  r.cores = cores;
  return r;
}

TEST(Merge, ReplacesItsOwnRowsAndKeepsTheOthers) {
  const auto enough = rt::Cores::enough, fewer = rt::Cores::fewer;
  const std::vector<rt::Rule> fresh = {row("all_reduce@private<=8:inline", 2, enough)};
  const std::vector<rt::Rule> old = {
      row("all_reduce@private<=16:ring", 2, enough),  // replaced
      row("all_reduce<=32:ring", 2, enough),          // replaced too; it would hide no other row
      row("all_reduce@registered<=64:zerocopy", 2, enough),
      row("all_reduce@private<=128:chain", 4, enough),
      row("all_reduce@private<=256:tree", 2, fewer),
      row("reduce@private<=512:tree", 2, enough),
  };
  EXPECT_THAT(texts(merge(fresh, old)),
              ElementsAre("all_reduce@private<=8:inline", "all_reduce@registered<=64:zerocopy",
                          "all_reduce@private<=128:chain", "all_reduce@private<=256:tree",
                          "reduce@private<=512:tree"));
  EXPECT_THAT(texts(merge(fresh, {})), ElementsAre("all_reduce@private<=8:inline"));
}

TEST(Existing, IsReadUnlessItIsOfAnotherMachine) {
  const std::string file = testing::TempDir() + "ouro_tune." + std::to_string(::getpid());
  const auto none = existing_rules(file, "this machine");
  ASSERT_TRUE(none) << none.status().message();
  EXPECT_TRUE(none->rows.empty());
  rt::Rules rules;
  rules.stream_bytes = 5;
  rules.rows = {row("all_reduce<=8:inline", 2, rt::Cores::enough)};
  std::ofstream(file) << rt::to_json(rules, "this machine");
  const auto same = existing_rules(file, "this machine");
  ASSERT_TRUE(same) << same.status().message();
  EXPECT_THAT(texts(same->rows), ElementsAre("all_reduce<=8:inline"));
  EXPECT_EQ(same->stream_bytes, 5u);
  const auto other = existing_rules(file, "that machine");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.status().message(),
              HasSubstr("was measured on 'this machine', and this is 'that machine'"));
  std::ofstream(file) << "{";
  EXPECT_FALSE(existing_rules(file, "this machine"));
  ::unlink(file.c_str());
}

TEST(TimedRace, DistinguishesSlowFromFastOnEveryRank) {
  auto contexts = Context::threads(2);
  ASSERT_TRUE(contexts) << contexts.status().message();
  std::vector<std::vector<Trial>> seen(2);
  {
    std::vector<std::jthread> ranks;
    for (Context& c : *contexts)
      ranks.emplace_back([&] {
        std::vector<std::byte> in(4096), out(4096);
        const auto sleeps = [&](int us) {
          return [&c, us]() -> Status {
            if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::microseconds(us));
            return {};
          };
        };
        const std::vector<Runner> runners = {{"fast", sleeps(20), in, out},
                                             {"slow", sleeps(800), in, out},
                                             {"hopeless", sleeps(100'000), in, out}};
        auto trials = race(c.world(), runners, 0, {.rounds = 5});
        EXPECT_TRUE(trials) << trials.status().message();
        if (trials) seen[static_cast<std::size_t>(c.rank())] = *trials;
        EXPECT_TRUE(c.close().ok());
      });
  }
  ASSERT_EQ(seen[0].size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(seen[0][i].us, seen[1][i].us) << "the same on all ranks";
  EXPECT_EQ(seen[0][0].us.size(), 5u);
  EXPECT_GE(seen[0][1].median(), 750) << "the slowest rank's";
  EXPECT_TRUE(seen[0][2].us.empty()) << "given up";
  EXPECT_GE(seen[0][2].first_us, 100'000);
  EXPECT_EQ(winner(seen[0], 1, 0.03), 0u);
}

}  // namespace
}  // namespace ouro::perf
