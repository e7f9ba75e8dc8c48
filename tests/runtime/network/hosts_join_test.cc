// Failing joins over several hosts as users see them: ranks are threads that treat each other as ranks of
// other hosts, over the loopback interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <thread>
#include <vector>

#include "ouro/ouro.hpp"
#include "tests/timing.h"

namespace ouro {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

class HostsJoin : public testing::Test {
 protected:
  void SetUp() override {
    setenv("OURO_INSECURE", "1", 1);
    setenv("OURO_SOCKET_IFNAME", "lo", 1);
    auto id = UniqueId::create();
    ASSERT_TRUE(id.ok());
    id_ = *id;
    file_ = std::filesystem::temp_directory_path() / ("ouro-hosts-join-" + std::to_string(getpid()));
    std::filesystem::remove(file_);
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
    for (const char* name : {"OURO_INSECURE", "OURO_SOCKET_IFNAME"}) unsetenv(name);
  }
  /// Options of the `local`-th of `many` ranks on `host`.
  InitOptions rank(int rank, int world, const char* host, int local, int many) const {
    InitOptions o;
    o.rank = rank, o.world_size = world, o.id = id_;
    o.local_rank = local, o.local_size = many;
    o.host_id = host;
    o.rendezvous = "file:" + file_.string();
    o.join_deadline = 5s, o.deadline = 5s;
    return o;
  }
  void start(const InitOptions& options) {
    outcomes_.emplace_back();
    Status& outcome = outcomes_.back();
    threads_.emplace_back([options, &outcome] { outcome = Context::create(options).status(); });
  }
  void join(std::size_t which) { threads_[which].join(); }
  void join_all() {
    for (auto& t : threads_)
      if (t.joinable()) t.join();
  }

  UniqueId id_;
  std::filesystem::path file_;
  std::deque<Status> outcomes_;
  std::vector<std::thread> threads_;
};

/// Ranks that arrive a moment after the failure, on a host that has gathered its ranks or on another host,
/// get the same error.
TEST_F(HostsJoin, LateRanksOfAFailedJobGetTheSameError) {
  const auto begin = std::chrono::steady_clock::now();
  InitOptions odd = rank(1, 5, "a", 1, 3);
  odd.numerics = Numerics::canonical;
  start(rank(0, 5, "a", 0, 3)), start(rank(3, 5, "b", 0, 1)), start(odd);
  join(2);  // it is refused without delay
  start(rank(2, 5, "a", 2, 3)), start(rank(4, 5, "c", 0, 1));
  join_all();
  for (const Status& s : outcomes_) {
    EXPECT_EQ(s.reason(), Reason::mismatch) << s.message();
    EXPECT_THAT(s.message(), AllOf(HasSubstr("=fast"), HasSubstr("=canonical")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kHang);
}

TEST_F(HostsJoin, DifferentWorldSizeOnAHostIsReportedToAll) {
  start(rank(0, 3, "a", 0, 1)), start(rank(1, 3, "b", 0, 2)), start(rank(2, 4, "b", 1, 2));
  join_all();
  for (const Status& s : outcomes_) {
    EXPECT_EQ(s.reason(), Reason::mismatch) << s.message();
    EXPECT_THAT(s.message(), AllOf(HasSubstr("says 4"), HasSubstr("says 3"), HasSubstr("rank 2 (")));
  }
}

/// Below, a rank of the four never comes, as a process takes the place of another instead: nobody waits for
/// it. That process comes last, because a rank that comes after all have been told finds nobody.
void expect_duplicates(const std::deque<Status>& outcomes, const char* words) {
  for (const Status& s : outcomes) {
    EXPECT_EQ(s.reason(), Reason::refused) << s.message();
    EXPECT_THAT(s.message(), HasSubstr(words));
  }
}

using TimedHostsJoin = HostsJoin;
TEST_F(TimedHostsJoin, ADuplicateOnTheHostOfRankZeroEndsTheJob) {
  start(rank(0, 4, "a", 0, 2)), start(rank(1, 4, "a", 1, 2)), start(rank(2, 4, "b", 0, 2));
  std::this_thread::sleep_for(500ms);
  start(rank(1, 4, "a", 1, 2));
  join_all();
  expect_duplicates(outcomes_, "duplicate-rank: rank 1 (");
}

TEST_F(TimedHostsJoin, ADuplicateOnAnotherHostEndsTheJob) {
  start(rank(0, 4, "a", 0, 1)), start(rank(1, 4, "b", 0, 3)), start(rank(2, 4, "b", 1, 3));
  std::this_thread::sleep_for(500ms);
  start(rank(2, 4, "b", 1, 3));
  join_all();
  expect_duplicates(outcomes_, "duplicate-rank: rank 2 (");
}

TEST_F(TimedHostsJoin, ASecondFirstRankOfAHostEndsTheJob) {
  start(rank(0, 4, "a", 0, 1)), start(rank(1, 4, "b", 0, 3)), start(rank(2, 4, "b", 1, 3));
  std::this_thread::sleep_for(500ms);
  start(rank(3, 4, "b", 0, 3));  // another rank with the same local rank
  join_all();
  expect_duplicates(outcomes_, "is the first rank of this job on");
}

TEST_F(TimedHostsJoin, ADuplicateOnAThirdHostEndsTheJob) {
  start(rank(0, 4, "a", 0, 1)), start(rank(1, 4, "b", 0, 1)), start(rank(2, 4, "c", 0, 1));
  std::this_thread::sleep_for(500ms);
  start(rank(1, 4, "d", 0, 1));
  join_all();
  expect_duplicates(outcomes_, "duplicate-rank: rank 1 (");
}

}  // namespace
}  // namespace ouro
