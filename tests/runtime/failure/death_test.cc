// Death of ranks that are processes: which rank is named, how soon, and that the error is sticky.
#include <signal.h>
#include <unistd.h>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

enum class Phase { running, idle, barrier, receiving, ring };
struct Case {
  const char* name;
  Phase phase;
  std::vector<int> victims;
  bool with_child = false;
};
std::ostream& operator<<(std::ostream& os, const Case& c) { return os << c.name; }

/// Forks a child of the victim that lives on, as a data loader would, with everything that it inherited.
void leave_a_child(const Board& board) {
  if (fork() != 0) return;
  eventually([&] { return board.over.load(); }, 8s);
  _exit(0);
}

Status wait_in(Phase phase, Group& g, bool victim) {
  std::vector<float> data(1 << 18);
  const std::span<float> all(data);
  switch (phase) {
    case Phase::running:
      return all_reduce(g, all, all);
    case Phase::ring:
      return all_reduce(g, all, all, ReduceOp::sum, {.algorithm = "ring"});
    case Phase::receiving:
      if (!victim) return recv(g, all, g.rank() == 1 ? 2 : 1).status();
      break;
    case Phase::barrier:
      if (!victim) return barrier(g);
      break;
    case Phase::idle:
      break;
  }
  std::this_thread::sleep_for(1ms);
  return g.status();
}

void survive(int rank, Board& board, const Case& c, const UniqueId& id) {
  auto joined = Context::create(options(rank, 4, id));
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  Group& g = joined->world();
  const bool victim = testing::Value(c.victims, testing::Contains(rank));
  ASSERT_TRUE(exact_all_reduce(g).ok());
  if (victim && c.with_child) leave_a_child(board);
  board.stage[rank] = 1;
  Status s;
  while (s.ok()) s = wait_in(c.phase, g, victim);
  board.heard_ns[rank] = now_ns();
  EXPECT_THAT(s, Fails(Reason::peer_dead));
  EXPECT_THAT(c.victims, testing::Contains(s.failure()->rank)) << s.message();
  EXPECT_EQ(s.failure()->pid, board.pid[s.failure()->rank]) << s.message();
  EXPECT_EQ(s.failure()->dead, c.victims) << s.message();
  EXPECT_EQ(s.failure()->group, "world");
  EXPECT_FALSE(s.failure()->host.empty());
  for (int i = 0; i < 3; ++i) {  // the error is sticky and unchanged
    EXPECT_THAT(exact_all_reduce(g), Fails(Reason::peer_dead, s.failure()->rank));
    EXPECT_THAT(barrier(g), Fails(Reason::peer_dead, s.failure()->rank));
    EXPECT_THAT(send(g, CView(&i, 1, DType::i32), (rank + 1) % 4),
                Fails(Reason::peer_dead, s.failure()->rank));
    EXPECT_EQ(g.status().message(), s.message());
  }
  EXPECT_TRUE(joined->close().ok());
}

class TimedDeath : public testing::TestWithParam<Case> {};

TEST_P(TimedDeath, EverySurvivorNamesTheDeadRank) {
  Watchdog watchdog;
  const Case& c = GetParam();
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(4, [&](int rank, Board& board) { survive(rank, board, c, id); });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);  // into the middle of an operation
  ranks.kill(c.victims);
  ranks.join(c.victims);
  std::int64_t first = INT64_MAX, last = 0;
  for (int r = 0; r < 4; ++r)
    if (!testing::Value(c.victims, testing::Contains(r))) {
      const std::int64_t took = ranks.board().heard_ns[r] - ranks.board().killed_ns;
      first = std::min(first, took), last = std::max(last, took);
    }
  RecordProperty("first_us", std::to_string(first / 1000));
  RecordProperty("last_us", std::to_string(last / 1000));
  EXPECT_LT(std::chrono::nanoseconds(last), kHardBound);
  EXPECT_LT(std::chrono::nanoseconds(first), 250ms);  // at least one survivor was not starved by other load
}

INSTANTIATE_TEST_SUITE_P(
    , TimedDeath,
    testing::Values(Case{"running", Phase::running, {3}}, Case{"running_rank_0", Phase::running, {0}},
                    Case{"running_two", Phase::running, {1, 2}},
                    Case{"running_with_child", Phase::running, {1}, true}, Case{"ring", Phase::ring, {2}},
                    Case{"idle", Phase::idle, {2}}, Case{"idle_rank_0", Phase::idle, {0}},
                    Case{"idle_two", Phase::idle, {0, 3}}, Case{"idle_with_child", Phase::idle, {0}, true},
                    Case{"barrier", Phase::barrier, {1}}, Case{"barrier_rank_0", Phase::barrier, {0}},
                    Case{"barrier_three", Phase::barrier, {0, 1, 2}},
                    Case{"receiving", Phase::receiving, {3}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Leaving, ExitWithoutCloseIsDeath) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    ASSERT_TRUE(exact_all_reduce(joined->world()).ok());
    if (rank == 1) _exit(0);
    const Status s = barrier(joined->world());
    EXPECT_THAT(s, Fails(Reason::peer_dead, 1));
    EXPECT_TRUE(has(s.message(), "ended without close")) << s.message();
    EXPECT_EQ(s.failure()->pid, board.pid[1]);
    EXPECT_EQ(s.failure()->op, "barrier") << s.json();
    EXPECT_EQ(s.failure()->seq, 2u);
  });
  ranks.join();
}

TEST(Leaving, ClosingIsAnErrorOnlyForRanksThatNeedTheLeaver) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Group& g = joined->world();
    ASSERT_TRUE(exact_all_reduce(g).ok());
    if (rank == 2) {
      EXPECT_TRUE(joined->close().ok());
      board.stage[2] = 1;
      return;
    }
    ASSERT_TRUE(eventually([&] { return board.stage[2] == 1; }));
    std::this_thread::sleep_for(150ms);  // it has ended by now
    EXPECT_TRUE(g.status().ok()) << g.status().message();
    int value = 41 + rank;
    if (rank == 0) {
      EXPECT_TRUE(send(g, CView(&value, 1, DType::i32), 1).ok());
    }
    if (rank == 1) {
      EXPECT_TRUE(recv(g, View(&value, 1, DType::i32), 0).ok());
    }
    EXPECT_EQ(value, 41);
    const int pair[] = {0, 1};
    auto without = joined->group(pair, "pair");
    ASSERT_TRUE(without.ok());
    EXPECT_TRUE(exact_all_reduce(*without).ok());
    const Status s = barrier(g);
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    EXPECT_TRUE(has(s.message(), "left the group")) << s.message();
    EXPECT_EQ(s.failure()->pid, board.pid[2]);
    EXPECT_TRUE(exact_all_reduce(*without).ok()) << "other groups go on";
  });
  ranks.join();
}

TEST(Leaving, ReceiveFromARankThatDiesOrLeavesFails) {
  Watchdog watchdog;
  for (const bool dies : {true, false}) {
    const UniqueId job = new_id();
    OURO_NEEDS_PROCESSES();
    Processes ranks(2, [&](int rank, Board& board) {
      auto joined = Context::create(options(rank, 2, job));
      ASSERT_TRUE(joined.ok()) << joined.status().message();
      std::vector<std::byte> data(3 << 20);
      if (rank == 1) {
        board.stage[1] = 1;
        std::this_thread::sleep_for(50ms);
        if (dies) raise(SIGKILL);
        EXPECT_TRUE(joined->close().ok());
        return;
      }
      const auto r = recv(joined->world(), View(data.data(), data.size(), DType::u8), 1);
      EXPECT_THAT(r.status(), Fails(Reason::peer_dead, 1));
    });
    ranks.join(dies ? std::vector<int>{1} : std::vector<int>{});
  }
}

/// The first operation of a group fetches memory from its first rank: that rank's death must end the fetch.
TEST(TimedDeathOfTheOwner, EndsAMemoryFetchThoughAChildHoldsTheSocket) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(2, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 2, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    board.stage[rank] = 1;
    if (rank == 0) {
      leave_a_child(board);
      board.stage[0] = 2;
      std::this_thread::sleep_for(10s);
    }
    ASSERT_TRUE(eventually([&] { return board.stage[1] == 2; }));
    const Status s = barrier(joined->world());
    board.heard_ns[1] = now_ns();
    EXPECT_THAT(s, Fails(Reason::peer_dead, 0));
  });
  ASSERT_TRUE(ranks.all_reach(1) && ranks.all_reach(2, {1}));
  ::kill(ranks.pid(0), SIGSTOP);  // rank 0 does not answer...
  ranks.board().stage[1] = 2;
  std::this_thread::sleep_for(100ms);
  ranks.kill({0});  // ...and dies with its listening socket held open by a child
  ranks.join({0});
  EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[1] - ranks.board().killed_ns), kHardBound);
}

}  // namespace
}  // namespace ouro::test
