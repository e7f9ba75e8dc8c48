// Continuing after deaths: agreement on the survivors, exact results, where to resume.
#include <signal.h>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Runs operations until one fails, then shrinks until one succeeds. Returns the report of the last shrink.
ShrinkReport go_on(Group& g, Board& board, int rank) {
  std::uint64_t done = 0;
  while (exact_all_reduce(g, 20'000).ok()) ++done;
  board.completed[rank] = done;
  ShrinkReport report;
  for (int i = 0; i < 4; ++i) {
    auto next = g.shrink(&report);
    EXPECT_TRUE(next.ok()) << next.status().message();
    if (!next.ok()) break;
    g = std::move(*next);
    if (exact_all_reduce(g).ok()) return report;
  }
  ADD_FAILURE() << "rank " << rank << ": " << g.status().message();
  return report;
}

TEST(Shrink, ThreeDeathsLeaveWorkingGroupsDownToOneRank) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(4, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 4, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    const int all[] = {0, 1, 2, 3};
    auto made = joined->group(all, "g");
    ASSERT_TRUE(made.ok());
    Group g = std::move(*made);
    const std::vector<int> left[] = {{0, 1, 2, 3}, {0, 1, 3}, {1, 3}, {3}};
    for (int round = 1; round <= 3; ++round) {
      ASSERT_TRUE(exact_all_reduce(g).ok());
      board.stage[rank] = round;
      const ShrinkReport report = go_on(g, board, rank);
      EXPECT_EQ(std::vector<int>(g.ranks().begin(), g.ranks().end()), left[round]);
      EXPECT_EQ(g.generation(), static_cast<std::uint64_t>(round));
      EXPECT_EQ(report.dead.size(), 1u);
      // One operation preceded the loop of this generation, or two if go_on() had begun it.
      const std::uint64_t last = (round == 1 ? 1 : 3) + board.completed[rank];
      EXPECT_LE(report.resume_seq, last + 1);
      EXPECT_GE(report.resume_seq, last) << "ranks are at most one operation apart";
      ASSERT_TRUE(exact_all_reduce(g, 100'000, {.algorithm = "ring"}).ok());
    }
  });
  std::vector<int> dead;
  for (const int victim : {2, 0, 1}) {
    ASSERT_TRUE(ranks.all_reach(static_cast<int>(dead.size()) + 1, dead));
    std::this_thread::sleep_for(20ms);
    dead.push_back(victim);
    ranks.kill({victim});
  }
  ranks.join(dead);
}

/// Every survivor gets the same number: that of the first operation that some survivor has not completed.
TEST(Shrink, ResumesAtTheFirstOperationSomeSurvivorLacks) {
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  std::atomic<bool> two_done{false};
  on_threads(3, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    std::vector<float> data(16);
    const std::span<float> span(data);
    ASSERT_TRUE(exact_all_reduce(g, 1000, {.algorithm = "ring"}).ok());  // creates the links
    // The root of a small broadcast does not wait: it completes 2 and 3, the others stop at 1.
    if (rank == 0) {
      EXPECT_TRUE(broadcast(g, span, span, 0, {.algorithm = "tree"}).ok());
      EXPECT_TRUE(broadcast(g, span, span, 0, {.algorithm = "tree"}).ok());
      two_done = true;
    } else {
      EXPECT_TRUE(eventually([&] { return two_done.load(); }));
      std::this_thread::sleep_for(5ms);
    }
    ShrinkReport report;
    auto next = g.shrink(&report);
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_EQ(report.resume_seq, 2u);
    EXPECT_TRUE(exact_all_reduce(*next).ok());
    EXPECT_THAT(barrier(g), Fails(Reason::revoked)) << "the old group stays revoked";
  });
}

/// Ranks, including the deciding one, die at every moment of an agreement that another death has started.
TEST(Shrink, SurvivesDeathsDuringShrink) {
  Watchdog watchdog(50s);
  for (int run = 0; run < 12; ++run) {
    const UniqueId id = new_id();
    const int second = run % 3;  // 0 decides
    const auto delay = std::chrono::microseconds(run / 3 * 700);
    OURO_NEEDS_PROCESSES();
    Processes ranks(4, [&](int rank, Board& board) {
      auto joined = Context::create(options(rank, 4, id));
      ASSERT_TRUE(joined.ok()) << joined.status().message();
      const int all[] = {0, 1, 2, 3};
      auto made = joined->group(all, "g");
      ASSERT_TRUE(made.ok());
      Group g = std::move(*made);
      ASSERT_TRUE(exact_all_reduce(g).ok());
      board.stage[rank] = 1;
      while (g.status().ok()) std::this_thread::sleep_for(200us);
      std::thread suicide;
      if (rank == second)
        suicide = std::thread([&] {
          std::this_thread::sleep_for(delay);
          raise(SIGKILL);
        });
      (void)go_on(g, board, rank);
      if (rank == second) suicide.join();
      // The second death may occur after this agreement: then the next operation detects it.
      while (g.size() > 2) (void)go_on(g, board, rank);
      EXPECT_EQ(g.size(), 2);
      for (int r : g.ranks()) EXPECT_TRUE(r != 3 && r != second);
      EXPECT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
    });
    ASSERT_TRUE(ranks.all_reach(1));
    ranks.kill({3});
    ranks.join({3, second});
    if (HasFailure()) FAIL() << "run " << run;
  }
}

TEST(Shrink, AbsentRankIsNamedAtTheDeadline) {
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 300ms;
  auto contexts = thread_contexts(2, o);
  const auto next = contexts[0].world().shrink();
  EXPECT_THAT(next.status(), Fails(Reason::deadline));
  EXPECT_TRUE(has(next.status().message(), "ranks {1} have not called shrink()")) << next.status().message();
}

TEST(Shrink, SecondShrinkOfAGroupIsRefused) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Group& old = contexts[static_cast<std::size_t>(rank)].world();
    auto next = old.shrink();
    ASSERT_TRUE(next.ok()) << next.status().message();
    const auto again = old.shrink();  // it would have the same generation and the same memory
    EXPECT_THAT(again.status(), Fails(Reason::invalid));
    EXPECT_TRUE(has(again.status().message(), "has been shrunk before")) << again.status().message();
    EXPECT_TRUE(exact_all_reduce(*next).ok());
    auto after = next->shrink();
    ASSERT_TRUE(after.ok()) << after.status().message();
    EXPECT_EQ(after->generation(), 2u);
    EXPECT_TRUE(exact_all_reduce(*after).ok());
  });
}

TEST(Shrink, OldGroupsMayBeDestroyedInAnyOrder) {
  Watchdog watchdog;
  for (int order = 0; order < 3; ++order) {
    auto contexts = thread_contexts(3);
    on_threads(3, [&](int rank) {
      const int all[] = {0, 1, 2};
      auto old = contexts[static_cast<std::size_t>(rank)].group(all, "g");
      ASSERT_TRUE(old.ok());
      for (int i = 0; i < 10; ++i) {  // some ranks destroy the old group at once while others still agree
        auto next = old->shrink();
        ASSERT_TRUE(next.ok()) << next.status().message();
        ASSERT_EQ(next->size(), 3);
        if ((rank + order) % 3 == 0) *old = Group();
        ASSERT_TRUE(exact_all_reduce(*next).ok()) << next->status().message();
        *old = std::move(*next);
      }
    });
  }
}

}  // namespace
}  // namespace ouro::test
