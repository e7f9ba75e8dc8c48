// Ranks that die, never come, or are aborted: errors within bounded time, and continuing afterwards.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ranks.h"

namespace ouro::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// Rank 1 is killed. The others learn of it, shrink, and continue.
int killed(int rank, int size, ncclUniqueId id, const std::string&) {
  ncclComm_t comm = nullptr, rest = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) return 2;
  int x = 1, y = 0;
  if (ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr) != ncclSuccess || y != size) return 3;
  if (rank == 1) kill(getpid(), SIGKILL);
  const auto begin = Clock::now();
  if (ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr) != ncclRemoteError) return 4;
  if (since(begin) > 5 || std::string(ncclGetLastError(comm)).find("rank 1") == std::string::npos) return 5;
  ncclResult_t state = ncclSuccess;
  if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclRemoteError) return 6;
  int gone = 1;
  if (ncclCommShrink(comm, &gone, 1, &rest, nullptr, NCCL_SHRINK_ABORT) != ncclSuccess) {
    std::fprintf(stderr, "%s\n", ncclGetLastError(comm));
    return 7;
  }
  if (ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, rest, nullptr) != ncclSuccess || y != size - 1) return 8;
  const auto end = Clock::now();
  if (ncclCommAbort(comm) != ncclSuccess || ncclCommDestroy(rest) != ncclSuccess) return 9;
  return since(end) > 2 ? 10 : 0;
}
const KnownScenario kKilled("killed", killed);

TEST(TimedFailure, KilledRankIsNamedAndTheOthersContinue) {
  EXPECT_THAT(spawn(4, "killed"), ElementsAre(0, -SIGKILL, 0, 0));
}

/// Rank 0 dies silently while no communication takes place: the others' communicators report it.
int watched(int rank, int size, ncclUniqueId id, const std::string&) {
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) return 2;
  if (rank == 0) _exit(0);
  ncclResult_t state = ncclSuccess;
  for (const auto begin = Clock::now(); state == ncclSuccess && since(begin) < 20;
       std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return 3;
  return state == ncclRemoteError && ncclCommDestroy(comm) == ncclSuccess ? 0 : 4;
}
const KnownScenario kWatched("watched", watched);

TEST(TimedFailure, IdleCommunicatorReportsADeadRankByItsState) {
  EXPECT_THAT(spawn(3, "watched"), ElementsAre(0, 0, 0));
}

/// The first rank sends, destroys its communicator and ends its process before the receiver asks for
/// the message.
int last_word(int rank, int size, ncclUniqueId id, const std::string&) {
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) return 2;
  std::vector<int> data(10'000, rank == 0 ? 7 : 0);
  if (rank == 0) {
    const auto begin = Clock::now();
    if (ncclSend(data.data(), data.size(), ncclInt32, 1, comm, nullptr) != ncclSuccess) return 3;
    if (ncclCommDestroy(comm) != ncclSuccess) return 4;
    return since(begin) < 0.2 ? 0 : 5;  // nothing has waited; the end of the process does
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  if (ncclRecv(data.data(), data.size(), ncclInt32, 0, comm, nullptr) != ncclSuccess) {
    std::fprintf(stderr, "%s\n", ncclGetLastError(comm));
    return 6;
  }
  return data.front() == 7 && data.back() == 7 && ncclCommDestroy(comm) == ncclSuccess ? 0 : 7;
}
const KnownScenario kLastWord("last_word", last_word);

TEST(TimedMessage, LastMessageOfAProcessThatExitsArrives) {
  EXPECT_THAT(spawn(2, "last_word"), ElementsAre(0, 0));
}

TEST(TimedAbort, FromAnotherThreadEndsACallThatWaits) {
  std::atomic<ncclComm_t> waiting{nullptr};
  in_threads(2, [&](int rank, ncclComm_t& comm) {
    int x = 1, y = 0;
    EXPECT_OK(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr));
    if (rank == 1) {
      while (!waiting) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      // An abort on rank 0 is noticed here.
      EXPECT_EQ(ncclAllReduce(&x, &y, 0, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
      ncclResult_t state = ncclSuccess;
      for (const auto begin = Clock::now(); state == ncclSuccess && since(begin) < 5;)
        EXPECT_OK(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, ncclRemoteError);
      return;
    }
    waiting = comm;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const auto begin = Clock::now();
      EXPECT_OK(ncclCommAbort(comm));
      EXPECT_LT(since(begin), 1);
    });
    const auto begin = Clock::now();
    std::vector<int> big(1 << 20), out(1 << 20);
    EXPECT_EQ(ncclAllReduce(&x, &y, 0, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(big.data(), out.data(), big.size(), ncclInt32, ncclSum, comm, nullptr),
              ncclRemoteError);
    EXPECT_LT(since(begin), 2);
    other.join();
    comm = nullptr;
  });
}

TEST(TimedAbort, EndsJoiningThatWaitsForOthers) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (const int rank : {0, 1}) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    ncclResult_t state = ncclSuccess;
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclInProgress);
    int x = 1, y = 0;
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidArgument);
    const auto begin = Clock::now();
    EXPECT_OK(ncclCommAbort(comm));
    EXPECT_LT(since(begin), 1);
  }
}

TEST(TimedAbort, InsideAGroupDropsItsDeferredCalls) {
  ncclComm_t comms[3];
  OURO_OK(ncclCommInitAll(comms, 3, nullptr));
  int x = 1, y = 0;
  OURO_OK(ncclGroupStart());
  OURO_OK(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comms[0], nullptr));
  for (auto c : comms) EXPECT_OK(ncclCommAbort(c));
  EXPECT_OK(ncclGroupEnd());  // deferred calls were dropped with it
  EXPECT_EQ(y, 0);
}

TEST(Fork, ChildGetsAnErrorForCommunicatorsOfItsParent) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under ThreadSanitizer: it starts no threads after such a fork";
#endif
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2], waiting[2] = {};
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  for (int r = 0; r < 2; ++r)
    ASSERT_EQ(ncclCommInitRankConfig(&waiting[r], 2, id, r, &config), ncclInProgress);
  for (auto c : waiting) ASSERT_EQ(settle(c), ncclSuccess);
  int x = 1, y[2] = {};
  ASSERT_EQ(ncclAllReduce(&x, &y[0], 1, ncclInt32, ncclSum, waiting[0], nullptr), ncclInProgress);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    ncclResult_t state = ncclSuccess;
    ncclComm_t made = nullptr;
    ncclRedOp_t op;
    std::uint64_t value = 0;
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
    for (const ncclComm_t c : {comms[0], waiting[0], waiting[1]}) {
      const ncclResult_t told[] = {ncclCommGetAsyncError(c, &state),
                                   ncclAllReduce(&x, y, 1, ncclInt32, ncclSum, c, nullptr),
                                   ncclSend(&x, 1, ncclInt32, 1, c, nullptr),
                                   ncclCommCount(c, y),
                                   ncclCommUserRank(c, y),
                                   ncclCommCuDevice(c, y),
                                   ncclCommMemStats(c, ncclStatGpuMemTotal, &value),
                                   ncclCommSuspend(c, NCCL_SUSPEND_MEM),
                                   ncclCommSplit(c, 0, 0, &made, nullptr),
                                   ncclCommShrink(c, &x, 1, &made, nullptr, 0),
                                   ncclCommGrow(c, 3, &id, -1, &made, nullptr),
                                   ncclRedOpCreatePreMulSum(&op, &x, ncclInt32, ncclScalarHostImmediate, c),
                                   ncclCommRegister(c, &x, 4, &handle),
                                   ncclCommWindowRegister(c, &x, 4, &window, 0),
                                   ncclCommFinalize(c),
                                   ncclCommRevoke(c, 0),
                                   ncclCommDestroy(c),
                                   ncclCommAbort(c)};
      int k = 0;
      for (const ncclResult_t t : told) {
        if (t != ncclInvalidUsage) _exit(10 + k);
        ++k;
      }
      if (!std::strstr(ncclGetLastError(nullptr), "forked")) _exit(2);
    }
    // It may have a communicator of its own.
    ncclComm_t own = nullptr;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&own, 1, id, 0) != ncclSuccess ||
        ncclAllReduce(&x, y, 1, ncclInt32, ncclSum, own, nullptr) != ncclSuccess ||
        ncclCommDestroy(own) != ncclSuccess)
      _exit(3);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(ncclAllReduce(&x, &y[1], 1, ncclInt32, ncclSum, waiting[1], nullptr), ncclInProgress);
  for (auto c : waiting) EXPECT_EQ(settle(c), ncclSuccess);
  EXPECT_EQ(y[0] + y[1], 4);
  for (auto c : comms) EXPECT_OK(ncclCommDestroy(c));
  for (auto c : waiting) EXPECT_OK(ncclCommDestroy(c));
}

/// Whether a communicator is still being closed in the background: a child forked meanwhile would find locks
/// that are never released.
bool ends_aside() {
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "ouro-nccl-end") return true;
  }
  return false;
}

/// At its exit a process waits for the messages that it has sent; so does a child of a parent that has
/// already done so.
TEST(TimedFork, AChildThatExitsWaitsForItsOwnMessages) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under ThreadSanitizer: it starts no threads after such a fork";
#endif
  int x = 5, y = 0;
  ncclComm_t comms[2];
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  OURO_OK(ncclGroupStart());
  OURO_OK(ncclSend(&x, 1, ncclInt32, 1, comms[0], nullptr));
  OURO_OK(ncclRecv(&y, 1, ncclInt32, 0, comms[1], nullptr));
  OURO_OK(ncclGroupEnd());
  for (const auto c : comms) EXPECT_OK(ncclCommDestroy(c));
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  for (int i = 0; i < 1000 && ends_aside(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    ncclComm_t own = nullptr;
    x = 7;
    if (ncclCommInitRank(&own, 2, id, 0) != ncclSuccess ||
        ncclSend(&x, 1, ncclInt32, 1, own, nullptr) != ncclSuccess || ncclCommDestroy(own) != ncclSuccess)
      _exit(3);
    std::exit(0);
  }
  ncclComm_t comm = nullptr;
  OURO_OK(ncclCommInitRank(&comm, 2, id, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // time for the child to be about to exit
  EXPECT_OK(ncclRecv(&y, 1, ncclInt32, 0, comm, nullptr));
  EXPECT_EQ(y, 7);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace ouro::test
