// Groups: made from members, split by colour and key, many at once, driven by many threads.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

class Groups : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, Groups, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// Checks the sum over the group of each member's contribution.
std::string expect_sum(Group& g, int mine, int expected) {
  int sum = 0;
  OURO_RANK_OK(all_reduce(g, CView(&mine, 1, DType::i32), View(&sum, 1, DType::i32)));
  OURO_RANK_CHECK(sum == expected, "{} in place of {} in group {}", sum, expected, g.name());
  return "";
}

TEST_P(Groups, SplitGroupsByColourAndOrdersByKey) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 5, [](Context& c) -> std::string {
    const int r = c.rank();
    // Even ranks in reverse order, odd ranks by rank (equal keys).
    auto g = c.world().split(r % 2, r % 2 == 0 ? -r : 7);
    OURO_RANK_OK(g);
    const std::vector<int> expected = r % 2 == 0 ? std::vector{4, 2, 0} : std::vector{1, 3};
    OURO_RANK_CHECK(std::equal(expected.begin(), expected.end(), g->ranks().begin(), g->ranks().end()),
                    "rank {}", r);
    OURO_RANK_CHECK(expected[static_cast<std::size_t>(g->rank())] == r && g->from_global(r) == g->rank(),
                    "{}", g->rank());
    OURO_RANK_CHECK(!g->from_global(r % 2 == 0 ? 1 : 0), "{}", "the others are not members");
    if (std::string said = expect_sum(*g, r, r % 2 == 0 ? 6 : 4); !said.empty()) return said;
    // Rank 2 stays out.
    auto some = c.world().split(r == 2 ? -1 : 3, 0);
    OURO_RANK_OK(some);
    OURO_RANK_CHECK(some->valid() == (r != 2), "{}", r);
    if (r == 2) {
      OURO_RANK_CHECK(barrier(*some).reason() == Reason::invalid, "{}", "an empty handle");
      return "";
    }
    if (std::string said = expect_sum(*some, 1 << r, 1 + 2 + 8 + 16); !said.empty()) return said;
    // A split of a split, and the same split twice: these are different groups.
    auto twice = some->split(0, 0), again = some->split(0, 0);
    OURO_RANK_OK(twice);
    OURO_RANK_OK(again);
    if (std::string said = expect_sum(*again, 1, 4); !said.empty()) return said;
    return expect_sum(*twice, 2, 8);
  });
  EXPECT_EQ(outcome, "");
}

TEST_P(Groups, AreCreatedByTheirMembersOnly) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 4, [](Context& c) -> std::string {
    const std::vector<int> members{3, 1};
    auto g = c.group(members, "pair");
    if (c.rank() % 2 == 0) {
      OURO_RANK_CHECK(g.status().reason() == Reason::invalid, "{}", g.status().message());
      return "";  // these ranks leave, which does not affect the pair
    }
    OURO_RANK_OK(g);
    OURO_RANK_CHECK(g->rank() == (c.rank() == 3 ? 0 : 1), "{}", g->rank());
    int seen = c.rank();
    OURO_RANK_OK(broadcast(*g, CView(&seen, 1, DType::i32), View(&seen, 1, DType::i32), 0));
    OURO_RANK_CHECK(seen == 3, "{}", seen);
    for (const std::vector<int>& wrong :
         {std::vector<int>{}, {c.rank(), c.rank()}, {c.rank(), 4}, {c.rank(), -1}})
      OURO_RANK_CHECK(c.group(wrong).status().reason() == Reason::invalid, "{}", fmt::ptr(&wrong));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Groups with equal ranks and tag pair up in the order in which they are made; others do not interact.
TEST_P(Groups, TwoHundredGroupsDoNotInteract) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    std::vector<Group> groups;
    const std::vector<int> all{0, 1};
    for (int i = 0; i < 200; ++i) {
      auto g = c.group(all, i % 3 == 0 ? "same" : fmt::format("tag {}", i));
      OURO_RANK_OK(g);
      groups.push_back(std::move(*g));
    }
    for (int i : {0, 3, 1, 199, 150, 2})
      if (std::string said = expect_sum(groups[static_cast<std::size_t>(i)], i + c.rank(), 2 * i + 1);
          !said.empty())
        return said;
    // One after the other, each used and dropped: the resources of a group are released.
    groups.clear();
    for (int i = 0; i < 200; ++i) {
      auto g = c.group(all, "short-lived");
      OURO_RANK_OK(g);
      if (std::string said = expect_sum(*g, i, 2 * i); !said.empty())
        return fmt::format("turn {}: {}", i, said);
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Each of four groups has its own thread on each rank; the groups do not wait for each other.
TEST_P(Groups, GroupsOnTheirOwnThreadsDoNotWaitForEachOther) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    constexpr int kGroups = 4, kTurns = 50;
    const std::vector<int> all{0, 1, 2};
    std::vector<Group> groups;
    for (int i = 0; i < kGroups; ++i) {
      auto g = c.group(all, fmt::format("lane {}", i));
      OURO_RANK_OK(g);
      groups.push_back(std::move(*g));
    }
    std::vector<std::string> said(kGroups);
    std::vector<std::thread> threads;
    for (int i = 0; i < kGroups; ++i)
      threads.emplace_back([&, i] {
        const auto k = static_cast<std::size_t>(i);
        for (int turn = 0; turn < kTurns && said[k].empty(); ++turn) {
          said[k] = expect_sum(groups[k], turn * (i + 1) + c.rank(), 3 * turn * (i + 1) + 3);
          std::vector<float> v(3000 * (k + 1), static_cast<float>(turn + c.rank()));
          if (Status s = all_reduce(groups[k], std::span<const float>(v), std::span<float>(v)); !s.ok())
            said[k] = s.message();
          if (v.back() != static_cast<float>(3 * turn + 3))
            said[k] = fmt::format("{} at turn {}", v.back(), turn);
        }
      });
    for (auto& t : threads) t.join();
    return std::accumulate(said.begin(), said.end(), std::string());
  });
  EXPECT_EQ(outcome, "");
}

/// Rows and columns of a mesh work at the same time as the world does.
TEST_P(Groups, RowsAndColumnsOfAMeshWorkConcurrently) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 6, [](Context& c) -> std::string {
    const int r = c.rank(), row_of = r / 3, column_of = r % 3;
    auto row = c.world().split(row_of, r), column = c.world().split(column_of, r);
    OURO_RANK_OK(row);
    OURO_RANK_OK(column);
    for (int turn = 0; turn < 30; ++turn) {
      std::string said = expect_sum(*row, r, 3 * 3 * row_of + 3);
      if (said.empty()) said = expect_sum(*column, r, 2 * column_of + 3);
      if (said.empty() && turn % 10 == 0) said = expect_sum(c.world(), r, 15);
      if (!said.empty()) return said;
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Calls of one group from many threads take turns. The calls are equal, since their order is undefined.
TEST(GroupThreads, CallsFromManyThreadsTakeTurns) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    std::vector<std::string> said(4);
    std::vector<std::thread> threads;
    for (std::string& mine : said)
      threads.emplace_back([&] {
        for (int turn = 0; turn < 50 && mine.empty(); ++turn) mine = expect_sum(c.world(), 5, 10);
      });
    for (auto& t : threads) t.join();
    return std::accumulate(said.begin(), said.end(), std::string());
  });
  EXPECT_EQ(outcome, "");
}

TEST(GroupThreads, ClosedAndEmptyHandlesAreRefused) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    auto g = c.world().split(0, 0);
    OURO_RANK_OK(g);
    OURO_RANK_OK(barrier(*g));
    OURO_RANK_OK(g->close());
    OURO_RANK_OK(g->close());
    OURO_RANK_CHECK(barrier(*g).reason() == Reason::revoked, "{}", barrier(*g).message());
    Group moved = std::move(*g);
    OURO_RANK_CHECK(!g->valid() && moved.valid(), "{}", "moved");
    OURO_RANK_CHECK(c.world().split(-2, 0).status().reason() == Reason::invalid, "{}", "colour -2");
    OURO_RANK_OK(c.close());
    OURO_RANK_OK(c.close());
    OURO_RANK_CHECK(!c.active(), "{}", "closed");
    OURO_RANK_CHECK(barrier(c.world()).reason() == Reason::revoked, "{}", barrier(c.world()).message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
