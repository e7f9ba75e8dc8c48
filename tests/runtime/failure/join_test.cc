// Failing joins: which rank is named, how soon, and that strangers do not disturb a job.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <random>

#include "runtime/join/bootstrap.h"
#include "runtime/join/local_socket.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

std::string rendezvous_of(const UniqueId& id) {
  wire::Nonce n;
  std::memcpy(n.data(), id.bytes + 8, n.size());  // after the magic
  return rt::rendezvous_name(n);
}

/// All ranks join at once. Returns their outcomes.
std::vector<Status> join_all(const std::vector<InitOptions>& all) {
  std::vector<Status> outcomes(all.size());
  on_threads(static_cast<int>(all.size()), [&](int i) {
    const auto k = static_cast<std::size_t>(i);
    auto c = Context::create(all[k]);
    outcomes[k] = c.status();
    if (c.ok()) outcomes[k] = exact_all_reduce(c->world());
  });
  return outcomes;
}

TEST(Join, ArgumentsOutOfRangeAreRefused) {
  const UniqueId id = new_id();
  for (auto [rank, world] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -1}, {0, 1 << 20}})
    EXPECT_THAT(Context::create(options(rank, world, id)).status(), Fails(Reason::invalid))
        << rank << " of " << world;
  InitOptions o = options(0, 2, id);
  o.world_size.reset();
  EXPECT_THAT(Context::create(o).status(), Fails(Reason::invalid));
  o = options(0, 2, id), o.id.reset();
  EXPECT_THAT(Context::create(o).status(), Fails(Reason::invalid));
  o = options(0, 2, id), o.deadline = 0ms;
  EXPECT_THAT(Context::create(o).status(), Fails(Reason::invalid));
  o = options(0, 4, id), o.local_size = 2;  // without a rendezvous for several hosts
  EXPECT_THAT(Context::create(o).status(), Fails(Reason::invalid));
  EXPECT_THAT(Context::threads(0).status(), Fails(Reason::invalid));
  EXPECT_THAT(Context::threads(257).status(), Fails(Reason::invalid));
}

TEST(Join, IdThatOuroDidNotMakeIsRefused) {
  std::mt19937 random(7);
  UniqueId id;
  for (auto& b : id.bytes) b = static_cast<unsigned char>(random());
  EXPECT_THAT(Context::create(options(0, 1, id)).status(), Fails(Reason::invalid));
  EXPECT_THAT(Context::create(options(1, 2, UniqueId{})).status(), Fails(Reason::invalid));
}

void expect_duplicate(const Status& s, int rank) {
  EXPECT_THAT(s, Fails(Reason::refused));
  const std::string me = "pid " + std::to_string(getpid()), text = s.message();
  EXPECT_TRUE(has(text, fmt::format("duplicate-rank: rank {} (", rank))) << text;
  EXPECT_TRUE(has(text, "joined first, then")) << text;
  EXPECT_NE(text.find(me), text.rfind(me)) << text;  // both are named
}

/// Two processes call themselves rank 1, so that rank 2 is missing: nobody waits for it.
TEST(Join, ADuplicateRankEndsTheJobAndBothAreNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  for (const Status& s : join_all({options(0, 3, id), options(1, 3, id), options(1, 3, id)}))
    expect_duplicate(s, 1);
}

TEST(TimedJoin, ADuplicateRankZeroEndsTheJob) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  std::vector<Status> outcomes(3);
  on_threads(3, [&](int i) {
    if (i == 2) std::this_thread::sleep_for(300ms);
    outcomes[static_cast<std::size_t>(i)] = Context::create(options(i == 2 ? 0 : i, 3, id)).status();
  });
  for (const Status& s : outcomes) expect_duplicate(s, 0);
}

/// Whoever comes when the job has formed is refused, and hurts nobody.
TEST(Join, DuplicatesAfterTheJobHasFormedEndNothing) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  std::barrier formed(3), refused(3);
  on_threads(3, [&](int i) {
    if (i == 2) {
      formed.arrive_and_wait();
      expect_duplicate(Context::create(options(0, 2, id)).status(), 0);
      const Status late = Context::create(options(1, 2, id)).status();
      EXPECT_THAT(late, Fails(Reason::refused));
      EXPECT_TRUE(has(late.message(), "closed")) << late.message();
      refused.arrive_and_wait();
      return;
    }
    auto c = Context::create(options(i, 2, id));
    EXPECT_TRUE(c.ok()) << c.status().message();
    formed.arrive_and_wait();
    refused.arrive_and_wait();
    EXPECT_TRUE(c.ok() && exact_all_reduce(c->world()).ok());
  });
}

TEST(TimedJoin, DifferentWorldSizesEndTheJobAndBothAreNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  const std::int64_t start = now_ns();
  for (const Status& s : join_all({options(0, 3, id), options(1, 3, id), options(2, 4, id)})) {
    EXPECT_THAT(s, Fails(Reason::mismatch));
    EXPECT_TRUE(has(s.message(), "says 3") && has(s.message(), "says 4")) << s.message();
  }
  EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), kHardBound);
}

TEST(Join, DifferentSettingsEndTheJobAndBothAreNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  auto odd = options(1, 3, id);
  odd.numerics = Numerics::canonical;
  for (const Status& s : join_all({options(0, 3, id), odd, options(2, 3, id)})) {
    EXPECT_THAT(s, Fails(Reason::mismatch));
    EXPECT_TRUE(has(s.message(), "OURO_NUMERICS=fast") && has(s.message(), "OURO_NUMERICS=canonical"))
        << s.message();
  }
}

TEST(TimedJoin, MissingRanksAreNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  auto a = options(0, 4, id), b = options(2, 4, id);
  a.join_deadline = b.join_deadline = 500ms;
  const std::int64_t start = now_ns();
  const auto outcomes = join_all({a, b});
  const auto took = std::chrono::nanoseconds(now_ns() - start);
  for (const Status& s : outcomes) EXPECT_THAT(s, Fails(Reason::never_joined));
  EXPECT_TRUE(has(outcomes[0].message(), "ranks {1,3} never joined; 2/4")) << outcomes[0].message();
  EXPECT_GE(took, 490ms);
  EXPECT_LT(took, 1500ms);
  b.id = new_id();
  const auto alone = Context::create(b);  // rank 0 never started
  EXPECT_THAT(alone.status(), Fails(Reason::never_joined));
  EXPECT_TRUE(has(alone.status().message(), "rank 0")) << alone.status().message();
}

TEST(TimedJoin, LatecomerIsTurnedAway) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  std::vector<Context> contexts(2);
  on_threads(2, [&](int r) {
    auto c = Context::create(options(r, 2, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    contexts[static_cast<std::size_t>(r)] = std::move(*c);
  });
  for (int i = 0; i < 20; ++i) {
    const std::int64_t start = now_ns();
    const auto late = Context::create(options(1, 2, id));
    EXPECT_THAT(late.status(), Fails(Reason::refused));
    EXPECT_TRUE(has(late.status().message(), "closed")) << late.status().message();
    EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), kHardBound);
  }
  on_threads(
      2, [&](int r) { EXPECT_TRUE(exact_all_reduce(contexts[static_cast<std::size_t>(r)].world()).ok()); });
}

TEST(TimedJoin, DeathOfARankWhileTheJobFormsIsNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(3, [&](int rank, Board& board) {
    if (rank == 2) {
      std::thread([] {
        std::this_thread::sleep_for(200ms);
        raise(SIGKILL);
      }).detach();
    }
    board.stage[rank] = 1;
    const auto c = Context::create(options(rank, 4, id));  // rank 3 never joins
    EXPECT_THAT(c.status(), Fails(Reason::peer_dead, 2));
    EXPECT_TRUE(has(c.status().message(), "while the job was forming")) << c.status().message();
    board.heard_ns[rank] = now_ns();
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.board().killed_ns = now_ns();
  ranks.join({2});
  for (int r : {0, 1})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns),
              kHardBound + 200ms);
}

TEST(TimedJoin, DeathOfRankZeroWhileTheJobFormsIsNamed) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(2, [&](int rank, Board& board) {
    board.stage[rank] = 1;
    const auto c = Context::create(options(rank, 3, id));
    EXPECT_THAT(c.status(), Fails(Reason::peer_dead, 0));
    board.heard_ns[rank] = now_ns();
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(200ms);
  ranks.kill({0});
  ranks.join({0});
  EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[1] - ranks.board().killed_ns), kHardBound);
}

/// Sends garbage to the rendezvous, and keeps silent connections open.
void disturb(const std::string& name, const Board& board) {
  std::mt19937 random(11);
  std::vector<Fd> silent;
  const wire::Bytes honest = wire::encode(wire::Fetch{});
  for (int i = 0; !board.over && i < 100'000; ++i) {
    Fd line = rt::connect_local(name);
    if (!line) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    std::vector<std::uint8_t> bytes(random() % 4000);
    for (auto& b : bytes) b = static_cast<std::uint8_t>(random());
    switch (i % 4) {
      case 0:
        break;
      case 1:
        bytes = honest;
        break;
      case 2:
        bytes = honest, bytes[random() % bytes.size()] ^= 0x10;
        break;
      case 3:
        if (silent.size() < 200) silent.push_back(std::move(line));
        continue;
    }
    (void)!::send(line.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (i % 64 == 0) std::this_thread::sleep_for(1ms);
  }
}

TEST(Join, ConnectionsFromOtherProgramsDoNotDisturbTheJob) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  OURO_NEEDS_PROCESSES();
  Processes ranks(5, [&](int rank, Board& board) {
    if (rank == 4) return disturb(rendezvous_of(id), board);
    if (rank == 3) std::this_thread::sleep_for(500ms);  // the job joins under attack
    auto c = Context::create(options(rank, 4, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(exact_all_reduce(c->world()).ok());
    board.stage[rank] = 1;
    EXPECT_TRUE(eventually([&] { return board.over.load(); }));
    EXPECT_TRUE(c->close().ok());
  });
  EXPECT_TRUE(ranks.all_reach(1, {4}));
  ranks.board().over = true;
  ranks.join();
}

/// Abstract names belong to the first process that binds them: another user can keep a job from joining, but
/// nothing more.
TEST(Join, ANameThatAnotherUserHoldsIsNotJoined) {
  if (geteuid() != 0) GTEST_SKIP() << "not root, which alone can become another user";
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    if (rank == 1) {
      ASSERT_EQ(setresuid(65'534, 65'534, 65'534), 0);
      const auto held = rt::listen_local(rendezvous_of(id));
      ASSERT_TRUE(held.ok()) << held.status().message();
      board.stage[1] = 1;
      EXPECT_TRUE(eventually([&] { return board.over.load(); }));
      return;
    }
    ASSERT_TRUE(eventually([&] { return board.stage[1] == 1; }));
    for (const int r : {0, 1}) {
      const Status s = Context::create(options(r, 2, id)).status();
      EXPECT_EQ(s.reason(), Reason::refused) << r;
      EXPECT_THAT(s.message(), testing::HasSubstr("user 65534")) << r;
    }
    board.over = true;
  });
  ranks.join();
}

}  // namespace
}  // namespace ouro::test
