// Descriptor limits that are too low for a job: they are raised, or all ranks report them at once with a
// clear message.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "runtime/core/log.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace {

/// While not 0, epoll_ctl() refuses to add descriptors, as if fs.epoll.max_user_watches were reached.
std::atomic<int> g_watch_no_more{0};
std::atomic<int> g_refused{0};

}  // namespace

/// Replaces the function of the C library.
extern "C" int epoll_ctl(int poller, int op, int fd, struct epoll_event* event) {
  constexpr int kAdd = 1;
  if (op == kAdd && g_watch_no_more.load() > 0) {
    ++g_refused;
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_epoll_ctl, poller, op, fd, event));
}

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

/// Runs `body` in a child process with other limits. Returns its result.
std::string with_limits(rlim_t soft, rlim_t hard, std::string (*body)()) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{soft, hard};
    const std::string said = ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? body() : "setrlimit";
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? said : said + " status " + std::to_string(status);
}

rlim_t hard_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_max;
}

std::string forty_processes() {
  return run_processes(40, [](Context& c) -> std::string {
    int one = 1, sum = 0;
    OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(&one, 1), std::span(&sum, 1)));
    OURO_RANK_CHECK(sum == 40, "{}", sum);
    return "";
  });
}

/// 2n + 32 = 112 descriptors per rank once all have joined; the rank that gathers the others needs half as
/// many more.
TEST(Descriptors, ASoftLimitIsRaised) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  if (hard_limit() < 1000) GTEST_SKIP() << "this system allows no more descriptors than " << hard_limit();
  EXPECT_EQ(with_limits(118, hard_limit(), forty_processes), "");
}

TEST(Descriptors, LowHardLimitIsReportedByAllRanksAtOnce) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  const auto begin = std::chrono::steady_clock::now();
  const std::string said = with_limits(118, 118, forty_processes);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kHang) << "nobody waits for who cannot come";
  int ranks = 0;
  for (auto at = said.find("rank "); at != said.npos; at = said.find("\nrank ", at + 1)) ++ranks;
  EXPECT_EQ(ranks, 40) << said;
  EXPECT_THAT(said, testing::HasSubstr("file descriptors needed for a job of 40 ranks"));
  EXPECT_THAT(said, testing::HasSubstr("118 available: raise the hard limit"));
  EXPECT_THAT(said, testing::Not(testing::HasSubstr("more descriptors than expected")));
}

TEST(Descriptors, ThreadRanksRaiseTheSoftLimitOrReportTheHardOne) {
  if (OURO_TEST_TSAN) GTEST_SKIP() << "under ThreadSanitizer: too many threads";
  if (hard_limit() < 2000) GTEST_SKIP() << "this system allows no more descriptors than " << hard_limit();
  const auto join = []() -> std::string {
    auto contexts = Context::threads(100, quick_options());
    return contexts.ok() ? "" : contexts.status().message();
  };
  EXPECT_EQ(with_limits(200, hard_limit(), join), "");
  EXPECT_EQ(with_limits(1024, 1024, join), "") << "9 for each, and no more";
  EXPECT_THAT(with_limits(200, 200, join), testing::HasSubstr("200 available: raise the hard limit"));
}

/// For a while the watch thread cannot watch connections of ranks that request memory: they wait, and
/// nothing fails.
TEST(Descriptors, WatchThreadSurvivesATemporaryShortage) {
  auto contexts = Context::threads(3, quick_options());
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  std::string said[3];
  {
    std::vector<std::thread> ranks;
    g_watch_no_more = 1;
    for (int r = 0; r < 3; ++r)
      ranks.emplace_back([&, r] {
        Context& c = (*contexts)[static_cast<std::size_t>(r)];
        int one = 1, sum = 0;
        const Status s = all_reduce(c.world(), std::span<const int>(&one, 1), std::span(&sum, 1));
        said[r] = s.ok() && sum == 3 ? "" : s.message();
      });
    std::this_thread::sleep_for(200ms);
    g_watch_no_more = 0;
    for (std::thread& t : ranks) t.join();
  }
  for (const std::string& s : said) EXPECT_EQ(s, "");
  EXPECT_GT(g_refused.load(), 0) << "nothing was tried meanwhile";
}

}  // namespace
}  // namespace ouro::test
