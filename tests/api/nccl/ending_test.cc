// Communicators that end while others use them, twice, or before the others: nothing is freed during a call,
// nothing is written after the end, and the remaining ones continue.
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

ncclComm_t alone() {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  EXPECT_OK(ncclGetUniqueId(&id));
  EXPECT_OK(ncclCommInitRank(&comm, 1, id, 0));
  return comm;
}

/// Creates two non-blocking communicators and waits until they are complete.
void make_two(ncclComm_t (&comms)[2]) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int r = 0; r < 2; ++r) ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
  for (const auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
}

TEST(End, SecondDestroyInOneGroupIsAnError) {
  ncclComm_t comms[2];
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  OURO_OK(ncclGroupStart());
  EXPECT_OK(ncclCommDestroy(comms[0]));
  EXPECT_OK(ncclCommDestroy(comms[0]));
  EXPECT_OK(ncclCommDestroy(comms[1]));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("has been destroyed"));
}

TEST(End, AbortAndDestroyAtTheSameTimeFreeTheCommunicatorOnce) {
  for (int i = 0; i < 400; ++i) {  // more than the number of handles in quarantine, so that one that is kept
                                   // twice would be freed twice
    const ncclComm_t comm = alone();
    std::barrier here(2);
    ncclResult_t aborted = ncclInternalError;
    std::thread other([&] {
      here.arrive_and_wait();
      aborted = ncclCommAbort(comm);
    });
    here.arrive_and_wait();
    const ncclResult_t destroyed = ncclCommDestroy(comm);
    other.join();
    ASSERT_THAT(aborted, AnyOf(ncclSuccess, ncclInvalidArgument));
    ASSERT_THAT(destroyed, AnyOf(ncclSuccess, ncclInvalidArgument));
    ASSERT_TRUE(aborted == ncclSuccess || destroyed == ncclSuccess);
  }
}

TEST(End, CommunicatorsOfAFailedGroupAreFreedOnce) {
  for (int i = 0; i < 200; ++i) {
    ncclComm_t comms[2] = {};
    OURO_OK(ncclGroupStart());
    ASSERT_EQ(ncclBcast(nullptr, 1, ncclInt32, 0, nullptr, nullptr), ncclInvalidArgument);
    ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclInvalidArgument);
    ASSERT_EQ(comms[0], nullptr);
    ASSERT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    ASSERT_EQ(comms[1], nullptr);
  }
  ncclComm_t comms[2] = {};
  OURO_OK(ncclGroupStart());
  OURO_OK(ncclCommInitAll(comms, 2, nullptr));
  OURO_OK(ncclGroupEnd());
  for (const auto c : comms) EXPECT_OK(ncclCommDestroy(c));
}

TEST(End, AbortWaitsForCallsOfOtherThreads) {
  for (int i = 0; i < 300; ++i) {
    const ncclComm_t comm = alone();
    std::atomic<int> polls{0};
    const auto poll = [&] {
      ncclResult_t state = ncclSuccess, told;
      ncclRedOp_t op;
      float factor = 2;
      do {
        told = ncclCommGetAsyncError(comm, &state);
        if (told == ncclSuccess)
          (void)ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, comm);
        ++polls;
      } while (told == ncclSuccess);
      EXPECT_EQ(told, ncclInvalidArgument);
    };
    std::thread one(poll), two(poll);
    while (polls < 4) std::this_thread::yield();
    EXPECT_OK(ncclCommAbort(comm));
    one.join(), two.join();
  }
}

TEST(End, DestroyOfANonBlockingCommunicatorCancelsPendingOperations) {
  ncclComm_t comms[2];
  make_two(comms);
  int in[2] = {1, 2}, out[2] = {-1, -1};
  ASSERT_EQ(ncclAllReduce(&in[0], &out[0], 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInProgress);
  EXPECT_OK(ncclCommDestroy(comms[0]));  // the other rank has not called it, and now it is too late
  ASSERT_EQ(ncclAllReduce(&in[1], &out[1], 1, ncclInt32, ncclSum, comms[1], nullptr), ncclInProgress);
  EXPECT_EQ(settle(comms[1]), ncclRemoteError);
  EXPECT_EQ(out[0], -1);
  EXPECT_OK(ncclCommDestroy(comms[1]));
}

TEST(TimedEnd, DestroyInAGroupWaitsForOperationsThatCanComplete) {  // it has 0.9 s
  ncclComm_t comms[2];
  make_two(comms);
  std::vector<float> in(1 << 20, 1), out[2] = {std::vector<float>(in.size()), std::vector<float>(in.size())};
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_OK(ncclAllReduce(in.data(), out[r].data(), in.size(), ncclFloat32, ncclSum, comms[r], nullptr));
    EXPECT_OK(ncclCommDestroy(comms[r]));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  EXPECT_THAT(out[0], ::testing::Each(2));
  EXPECT_THAT(out[1], ::testing::Each(2));
}

/// Rank 0 of `size` waits in `call` for a rank that lives but does not make the call, until another thread
/// aborts rank 0's communicator.
void expect_reached(int size, const std::function<ncclResult_t(int rank, ncclComm_t)>& call) {
  std::atomic<bool> reached{false};
  in_threads(size, [&](int rank, ncclComm_t& comm) {
    if (rank != 0) {
      (void)call(rank, comm);
      while (!reached) std::this_thread::sleep_for(1ms);
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(300ms);
      EXPECT_OK(ncclCommAbort(comm));
    });
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(call(rank, comm), ncclRemoteError);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kHang);
    reached = true;
    other.join();
    comm = nullptr;
  });
}

TEST(TimedAbort, EndsAShrinkThatWaits) {
  expect_reached(3, [](int rank, ncclComm_t comm) {
    int out = 2;
    ncclComm_t child = nullptr;
    return rank == 0 ? ncclCommShrink(comm, &out, 1, &child, nullptr, NCCL_SHRINK_DEFAULT) : ncclSuccess;
  });
}

TEST(TimedAbort, EndsASplitAfterRevokeThatWaits) {
  expect_reached(2, [](int rank, ncclComm_t comm) {
    ncclComm_t child = nullptr;
    EXPECT_OK(ncclCommRevoke(comm, 0));
    return rank == 0 ? ncclCommSplit(comm, 0, 0, &child, nullptr) : ncclSuccess;
  });
}

TEST(TimedAbort, EndsAGrowThatWaits) {
  ncclUniqueId wider;
  OURO_OK(ncclGetUniqueId(&wider));
  expect_reached(1, [&](int, ncclComm_t comm) {
    ncclComm_t grown = nullptr;
    return ncclCommGrow(comm, 2, &wider, -1, &grown, nullptr);
  });
}

TEST(TimedAbort, EndsASplitThatWaits) {
  expect_reached(3, [](int rank, ncclComm_t comm) {
    ncclComm_t child = nullptr;
    return rank < 2 ? ncclCommSplit(comm, 0, 0, &child, nullptr) : ncclSuccess;
  });
}

TEST(TimedAbort, EndsAMessageThatWaits) {
  expect_reached(2, [](int rank, ncclComm_t comm) {
    int x = 0;
    return rank == 0 ? ncclRecv(&x, 1, ncclInt32, 1, comm, nullptr) : ncclSuccess;
  });
}

TEST(TimedAbort, EndsAGroupThatWaits) {
  expect_reached(2, [](int rank, ncclComm_t comm) {
    if (rank != 0) return ncclSuccess;
    static std::vector<int> x(100'000), y(100'000), z(100'000);
    EXPECT_OK(ncclGroupStart());
    EXPECT_OK(ncclSend(x.data(), x.size(), ncclInt32, 1, comm, nullptr));
    EXPECT_OK(ncclRecv(y.data(), y.size(), ncclInt32, 1, comm, nullptr));
    EXPECT_OK(ncclAllReduce(x.data(), z.data(), z.size(), ncclInt32, ncclSum, comm, nullptr));
    return ncclGroupEnd();
  });
}

TEST(TimedAbort, EndsAFinalizeThatWaits) {
  ncclComm_t comms[2];
  make_two(comms);
  const std::vector<int> x(1'000'000);  // more than fits in flight, and nobody receives it
  ASSERT_EQ(ncclSend(x.data(), x.size(), ncclInt32, 1, comms[0], nullptr), ncclInProgress);
  ASSERT_EQ(ncclCommFinalize(comms[0]), ncclInProgress);
  std::this_thread::sleep_for(100ms);
  ncclResult_t state = ncclSuccess;
  EXPECT_OK(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInProgress);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_OK(ncclCommAbort(comms[0]));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kHang);
  EXPECT_OK(ncclCommAbort(comms[1]));
}

/// Data that fits into the links waits there for the receiver.
TEST(End, SenderThatEndsLeavesItsMessagesToTheReceiver) {
  in_threads(2, [](int rank, ncclComm_t& comm) {
    static std::atomic<bool> gone;
    std::vector<int> x(1000, 5), got(1000);
    if (rank == 0) {
      gone = false;
      EXPECT_OK(ncclSend(x.data(), x.size(), ncclInt32, 1, comm, nullptr));
      EXPECT_OK(ncclCommFinalize(comm));
      EXPECT_OK(ncclCommDestroy(comm));
      comm = nullptr;
      gone = true;
      return;
    }
    while (!gone) std::this_thread::sleep_for(1ms);
    EXPECT_OK(ncclRecv(got.data(), got.size(), ncclInt32, 0, comm, nullptr));
    EXPECT_EQ(got, x);
  });
}

TEST(TimedAbort, EndsPendingOperationsOfANonBlockingCommunicator) {
  ncclComm_t comms[2];
  make_two(comms);
  int in = 1, out = -1;
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInProgress);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_OK(ncclCommAbort(comms[0]));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(out, -1);
  ASSERT_EQ(ncclAllReduce(&in, &out, 1, ncclInt32, ncclSum, comms[1], nullptr), ncclInProgress);
  EXPECT_EQ(settle(comms[1]), ncclRemoteError);
  EXPECT_OK(ncclCommAbort(comms[1]));
}

/// In all states in which nothing waits: whole, finalized, revoked, failed, suspended, deferred.
TEST(TimedAbort, ReturnsAtOnceInEveryStateInWhichNothingWaits) {
  const std::function<void(ncclComm_t)> phases[] = {
      [](ncclComm_t) {},
      [](ncclComm_t c) { EXPECT_OK(ncclCommFinalize(c)); },
      [](ncclComm_t c) { EXPECT_OK(ncclCommRevoke(c, 0)); },
      [](ncclComm_t c) { EXPECT_OK(ncclCommSuspend(c, NCCL_SUSPEND_MEM)); },
      [](ncclComm_t c) {
        int x = 1;
        OURO_OK(ncclGroupStart());
        EXPECT_OK(ncclBcast(&x, 1, ncclInt32, 0, c, nullptr));
        EXPECT_OK(ncclCommFinalize(c));
      },
      [](ncclComm_t c) {  // the other rank does not make this call
        std::thread other([c] {
          std::this_thread::sleep_for(20ms);
          EXPECT_OK(ncclCommRevoke(c, 0));
        });
        int x = 1, y;
        EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, c, nullptr), ncclRemoteError);
        other.join();
      }};
  for (const auto& phase : phases) {
    std::barrier here(2);
    in_threads(2, [&](int rank, ncclComm_t& comm) {
      if (rank == 0) {
        phase(comm);
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_OK(ncclCommAbort(comm));
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
        EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
        (void)ncclGroupEnd();
        comm = nullptr;
      }
      here.arrive_and_wait();
    });
  }
}

/// A message from `rank` to `other`, and one back.
void exchange(ncclComm_t comm, int rank, int other) {
  std::vector<int> mine(30'000, rank), theirs(mine.size(), -1);
  OURO_OK(ncclGroupStart());
  OURO_OK(ncclSend(mine.data(), mine.size(), ncclInt32, other, comm, nullptr));
  OURO_OK(ncclRecv(theirs.data(), theirs.size(), ncclInt32, other, comm, nullptr));
  OURO_OK(ncclGroupEnd());
  EXPECT_THAT(theirs, ::testing::Each(other));
}

TEST(FirstRankLeft, OthersCanStillSendTheirFirstMessages) {
  std::atomic<bool> gone{false};
  in_threads(3, [&](int rank, ncclComm_t& comm) {
    if (rank == 0) {
      EXPECT_OK(ncclCommDestroy(comm));
      comm = nullptr;
      gone = true;
      return;
    }
    while (!gone) std::this_thread::yield();
    exchange(comm, rank, 3 - rank);
    ncclResult_t state = ncclInternalError;
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
  });
}

TEST(FirstRankLeft, RanksOfAChildStillShareOneMessageMemory) {
  std::barrier spoken(3), gone(3);
  in_threads(3, [&](int rank, ncclComm_t& comm) {
    ncclComm_t child = nullptr;
    OURO_OK(ncclCommSplit(comm, 0, rank, &child, nullptr));
    if (rank < 2) exchange(child, rank, 1 - rank);  // rank 2 has not requested the memory of messages yet
    spoken.arrive_and_wait();
    if (rank == 0) EXPECT_OK(ncclCommDestroy(child));
    gone.arrive_and_wait();
    if (rank == 0) return;
    exchange(child, rank, 3 - rank);
    EXPECT_OK(ncclCommDestroy(child));
  });
}

/// The first rank destroys its communicator, and stays for two seconds ("stays") or ends its process.
int left_by_the_first(int rank, int size, ncclUniqueId id, const std::string& how) {
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) return 2;
  if (how != "stays" && rank > 0) exchange(comm, rank, 3 - rank);
  int x = 1, y = 0;
  if (ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr) != ncclSuccess) return 3;
  if (rank == 0) {
    if (ncclCommDestroy(comm) != ncclSuccess) return 4;
    if (how == "stays") std::this_thread::sleep_for(2s);
    if (how == "is ended") _exit(0);
    return 0;
  }
  std::this_thread::sleep_for(500ms);
  exchange(comm, rank, 3 - rank);
  ncclResult_t state = ncclInternalError;
  if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclSuccess) return 5;
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return 6;
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 7;
}
const KnownScenario kLeft("left_by_the_first", left_by_the_first);

TEST(TimedFirstRankLeft, OtherProcessesContinueWithoutIt) {
  EXPECT_THAT(spawn(3, "left_by_the_first", "stays"), ElementsAre(0, 0, 0));
  EXPECT_THAT(spawn(3, "left_by_the_first", "ends"), ElementsAre(0, 0, 0));
  EXPECT_THAT(spawn(3, "left_by_the_first", "is ended"), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace ouro::test
