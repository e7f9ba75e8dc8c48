// Continuing after failures between hosts: ranks are processes that treat each other as ranks of other hosts,
// over the loopback interface. Kills, a lost host, a kill during shrink, a rank that resumes.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

constexpr auto kShrinkBound = 2s;

/// Placement of the ranks of a test: rank r is on host `hosts[r]`; and a file through which they find
/// each other.
class Hosts {
 public:
  explicit Hosts(std::vector<int> hosts) : hosts_(std::move(hosts)), id_(new_id()) {
    static int count = 0;
    file_ = std::filesystem::temp_directory_path() /
            ("ouro-hosts-test-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    setenv("OURO_INSECURE", "1", 1);
    setenv("OURO_SOCKET_IFNAME", "lo", 1);
    setenv("OURO_SILENT_FAIL", "1.5", 1);
  }
  ~Hosts() {
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
    for (const char* name : {"OURO_INSECURE", "OURO_SOCKET_IFNAME", "OURO_SILENT_FAIL"}) unsetenv(name);
  }
  int size() const { return static_cast<int>(hosts_.size()); }
  InitOptions options_of(int rank) const {
    InitOptions o = options(rank, size(), id_);
    o.local_rank = o.local_size = 0;
    for (int r = 0; r < size(); ++r) {
      if (hosts_[static_cast<std::size_t>(r)] != hosts_[static_cast<std::size_t>(rank)]) continue;
      if (r < rank) ++*o.local_rank;
      ++*o.local_size;
    }
    o.host_id = "host-" + std::to_string(hosts_[static_cast<std::size_t>(rank)]);
    o.rendezvous = "file:" + file_.string();
    return o;
  }

 private:
  std::vector<int> hosts_;
  UniqueId id_;
  std::filesystem::path file_;
};

Group all_of(Context& c, int size) {
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  auto g = c.group(all, "g");
  EXPECT_TRUE(g.ok()) << g.status().message();
  return g.ok() ? std::move(*g) : Group();
}

/// Runs operations until one fails, then shrinks until the group has `left` members and an operation is
/// exact. Returns the duration of the longest shrink.
Clock::duration go_on(Group& g, int left) {
  Clock::duration longest{};
  while (exact_all_reduce(g).ok()) {
  }
  for (int i = 0; i < 4; ++i) {
    const auto start = Clock::now();
    auto next = g.shrink();
    EXPECT_TRUE(next.ok()) << next.status().message();
    if (!next.ok()) return longest;
    longest = std::max(longest, Clock::now() - start);
    g = std::move(*next);
    if (g.size() == left && exact_all_reduce(g).ok()) return longest;
    while (exact_all_reduce(g).ok()) {
    }
  }
  ADD_FAILURE() << "rank " << g.rank() << " of " << g.size() << ": " << g.status().message();
  return longest;
}

/// All ranks join and run; `victims` are killed at once; the others continue together. No shrink takes longer
/// than `bound`.
void kill_and_go_on(std::vector<int> hosts, const std::vector<int>& victims, Clock::duration bound = kHang) {
  Watchdog watchdog(40s);
  const Hosts places(std::move(hosts));
  const int left = places.size() - static_cast<int>(victims.size());
  Processes ranks(places.size(), [&](int rank, Board& board) {
    auto joined = Context::create(places.options_of(rank));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Group g = all_of(*joined, places.size());
    ASSERT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
    board.stage[rank] = 1;
    const auto longest = go_on(g, left);
    EXPECT_LT(longest, bound);
    EXPECT_EQ(g.size(), left);
    for (int r : g.ranks()) EXPECT_EQ(std::count(victims.begin(), victims.end(), r), 0) << r;
    EXPECT_TRUE(barrier(g).ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(20ms);
  ranks.kill(victims);
  ranks.join(victims);
}

TEST(TimedHostsShrink, TwoHostsOfTwoContinueAfterOneDeath) {
  OURO_NEEDS_PROCESSES();
  for (const int victim : {3, 1, 0}) {
    SCOPED_TRACE(victim);
    kill_and_go_on({0, 0, 1, 1}, {victim}, kShrinkBound);
  }
}

TEST(HostsShrink, HostOfTwoContinuesAfterTheHostOfOneDies) {
  OURO_NEEDS_PROCESSES();
  kill_and_go_on({0, 0, 1}, {2});
}

TEST(HostsShrink, HostOfOneLeftAloneHasNoQuorum) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog(40s);
  const Hosts places({0, 0, 1});
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(places.options_of(rank));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Group g = all_of(*joined, places.size());
    ASSERT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
    board.stage[rank] = 1;
    while (exact_all_reduce(g).ok()) {
    }
    EXPECT_THAT(g.shrink().status(), Fails(Reason::no_quorum));
    EXPECT_THAT(g.shrink().status(), Fails(Reason::no_quorum)) << "for good";
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.kill({0, 1});
  ranks.join({0, 1});
}

/// The proposing rank dies while the agreement about another death is in progress.
TEST(HostsShrink, SurvivesADeathDuringShrink) {
  OURO_NEEDS_PROCESSES();
  for (int run = 0; run < 6; ++run) {
    Watchdog watchdog(40s);
    const Hosts places({0, 0, 1, 1});
    const auto delay = std::chrono::microseconds(run * 700);
    Processes ranks(4, [&](int rank, Board& board) {
      auto joined = Context::create(places.options_of(rank));
      ASSERT_TRUE(joined.ok()) << joined.status().message();
      Group g = all_of(*joined, places.size());
      ASSERT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
      board.stage[rank] = 1;
      while (exact_all_reduce(g).ok()) {
      }
      if (rank == 0) {
        std::thread([&] {
          std::this_thread::sleep_for(delay);
          raise(SIGKILL);
        }).detach();
      }
      go_on(g, 2);
      EXPECT_EQ(std::vector<int>(g.ranks().begin(), g.ranks().end()), (std::vector<int>{1, 2}));
    });
    ASSERT_TRUE(ranks.all_reach(1));
    ranks.kill({3});
    ranks.join({3, 0});
    if (HasFailure()) FAIL() << "run " << run;
  }
}

TEST(HostsShrink, ResumedRankIsFenced) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog(40s);
  const Hosts places({0, 0, 1});
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(places.options_of(rank));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Group g = all_of(*joined, places.size());
    ASSERT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
    board.stage[rank] = 1;
    if (rank == 2) {
      while (exact_all_reduce(g).ok()) {
      }
      EXPECT_THAT(g.shrink().status(), Fails(Reason::fenced));
      board.stage[rank] = 3;
      return;
    }
    go_on(g, 2);
    board.stage[rank] = 2;
    for (int i = 0; i < 200; ++i) {  // the same number on both ranks, while rank 2 resumes
      ASSERT_TRUE(exact_all_reduce(g).ok()) << g.status().message();
      std::this_thread::sleep_for(5ms);
    }
    EXPECT_TRUE(eventually([&] { return board.stage[2] == 3; }));
  });
  ASSERT_TRUE(ranks.all_reach(1));
  kill(ranks.pid(2), SIGSTOP);
  EXPECT_TRUE(ranks.all_reach(2, {2}));
  kill(ranks.pid(2), SIGCONT);
  ranks.join();
}

}  // namespace
}  // namespace ouro::test
