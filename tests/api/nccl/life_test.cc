// Creating, deriving and ending communicators.
#include <dirent.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using ::testing::HasSubstr;

/// The sum of `mine` over the ranks of `comm`, by an all-reduce.
int sum_of(ncclComm_t comm, int mine) {
  int out = -1;
  EXPECT_OK(ncclAllReduce(&mine, &out, 1, ncclInt32, ncclSum, comm, nullptr));
  return out;
}

TEST(Split, RanksAreGroupedByColorOrderedByKeyAndOutsidersGetNull) {
  in_threads(5, [](int rank, ncclComm_t comm) {
    ncclComm_t child = reinterpret_cast<ncclComm_t>(8);
    const int color = rank == 4 ? NCCL_SPLIT_NOCOLOR : rank % 2;
    OURO_OK(ncclCommSplit(comm, color, -rank, &child, nullptr));
    if (rank == 4) {
      EXPECT_EQ(child, nullptr);
    } else {
      int r = -1, n = -1;
      EXPECT_OK(ncclCommUserRank(child, &r));
      EXPECT_OK(ncclCommCount(child, &n));
      EXPECT_EQ(n, 2);
      EXPECT_EQ(r, rank < 2 ? 1 : 0);
      EXPECT_EQ(sum_of(child, rank), rank % 2 ? 4 : 2);
    }
    EXPECT_EQ(sum_of(comm, 1), 5);
    ncclComm_t none = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, -2, 0, &none, nullptr), ncclInvalidArgument);
    if (rank != 4) EXPECT_OK(ncclCommDestroy(child));
  });
}

TEST(Split, ChildrenOutliveTheirParent) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr, child = nullptr;
      OURO_OK(ncclCommInitRank(&comm, 3, id, r));
      OURO_OK(ncclCommSplit(comm, 0, r, &child, nullptr));
      EXPECT_OK(ncclCommDestroy(comm));
      EXPECT_EQ(sum_of(child, r), 3);
      EXPECT_OK(ncclCommDestroy(child));
    });
  for (auto& t : threads) t.join();
}

TEST(Split, OneThreadSplitsSeveralRanksInOneGroup) {
  ncclComm_t comms[4], children[4];
  OURO_OK(ncclCommInitAll(comms, 4, nullptr));
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 4; ++r) OURO_OK(ncclCommSplit(comms[r], r / 2, r, &children[r], nullptr));
  OURO_OK(ncclGroupEnd());
  int out[4] = {};
  OURO_OK(ncclGroupStart());
  for (int r = 0; r < 4; ++r)
    OURO_OK(ncclAllReduce(&r, &out[r], 0, ncclInt32, ncclSum, children[r], nullptr));
  OURO_OK(ncclGroupEnd());
  for (int r = 0; r < 4; ++r) {
    int n = 0;
    EXPECT_OK(ncclCommCount(children[r], &n));
    EXPECT_EQ(n, 2);
    EXPECT_OK(ncclCommDestroy(children[r]));
    EXPECT_OK(ncclCommDestroy(comms[r]));
  }
}

TEST(Shrink, ExcludesListedRanksAndKeepsTheOrder) {
  in_threads(4, [](int rank, ncclComm_t comm) {
    int out[] = {2, 0};
    ncclComm_t child = nullptr;
    if (rank == 0 || rank == 2) {
      EXPECT_EQ(ncclCommShrink(comm, out, 2, &child, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
      return;
    }
    EXPECT_EQ(ncclCommShrink(comm, nullptr, 1, &child, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, out, 0, &child, nullptr, 0), ncclInvalidArgument);
    OURO_OK(ncclCommShrink(comm, out, 2, &child, nullptr, NCCL_SHRINK_DEFAULT));
    EXPECT_EQ(out[0], 2);  // the caller's list is not changed
    int r = -1;
    EXPECT_OK(ncclCommUserRank(child, &r));
    EXPECT_EQ(r, rank == 1 ? 0 : 1);
    EXPECT_EQ(sum_of(child, rank), 4);
    EXPECT_OK(ncclCommDestroy(child));
  });
}

/// Two communicators with the same members and the same name: one rank shrinks the first one first, another
/// the second.
TEST(TimedShrink, IdenticalCommunicatorsAreShrunkWithoutMixing) {
  in_threads(3, [](int rank, ncclComm_t comm) {
    ncclComm_t parents[2] = {}, children[2] = {};
    for (auto& p : parents) OURO_OK(ncclCommSplit(comm, 0, rank, &p, nullptr));
    if (rank < 2) {
      std::vector<std::thread> threads;
      for (int k = 0; k < 2; ++k)
        threads.emplace_back([&, k] {
          if (k == rank) std::this_thread::sleep_for(std::chrono::milliseconds(200));
          int out = 2;
          OURO_OK(ncclCommShrink(parents[k], &out, 1, &children[k], nullptr, NCCL_SHRINK_DEFAULT));
          EXPECT_EQ(sum_of(children[k], 10 + k), 2 * (10 + k));
        });
      for (auto& t : threads) t.join();
      for (auto c : children) EXPECT_OK(ncclCommDestroy(c));
    }
    for (auto p : parents) EXPECT_OK(ncclCommDestroy(p));
  });
}

TEST(TimedRevoke, IdenticalCommunicatorsAreSplitWithoutMixingAfterRevoke) {
  in_threads(2, [](int rank, ncclComm_t comm) {
    ncclComm_t parents[2] = {}, children[2] = {};
    for (auto& p : parents) OURO_OK(ncclCommSplit(comm, 0, rank, &p, nullptr));
    for (auto p : parents) OURO_OK(ncclCommRevoke(p, 0));
    std::vector<std::thread> threads;
    for (int k = 0; k < 2; ++k)
      threads.emplace_back([&, k] {
        if (k == rank) std::this_thread::sleep_for(std::chrono::milliseconds(200));
        OURO_OK(ncclCommSplit(parents[k], 0, rank, &children[k], nullptr));
        EXPECT_EQ(sum_of(children[k], 10 + k), 2 * (10 + k));
      });
    for (auto& t : threads) t.join();
    for (auto c : children) EXPECT_OK(ncclCommDestroy(c));
    for (auto p : parents) EXPECT_OK(ncclCommDestroy(p));
  });
}

TEST(Init, ErrorMessagesNameTheCommunicator) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "tensor-parallel";
  ncclComm_t comm = nullptr;
  OURO_OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  EXPECT_EQ(ncclBcast(&id, 1, ncclInt8, 1, comm, nullptr), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr("communicator tensor-parallel: ncclBcast"));
  ncclComm_t child = nullptr;
  OURO_OK(ncclCommSplit(comm, 0, 0, &child, nullptr));
  EXPECT_EQ(ncclBcast(&id, 1, ncclInt8, 1, child, nullptr), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(child), ::testing::Not(HasSubstr("tensor-parallel")));
  EXPECT_OK(ncclCommDestroy(child));
  EXPECT_OK(ncclCommDestroy(comm));
}

TEST(Grow, MembersKeepTheirRanksAndNewOnesJoin) {
  ncclUniqueId id, wider;
  OURO_OK(ncclGetUniqueId(&id));
  OURO_OK(ncclGetUniqueId(&wider));
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr, grown = nullptr;
      if (r < 2) {
        OURO_OK(ncclCommInitRank(&comm, 2, id, r));
        EXPECT_EQ(ncclCommGrow(comm, 2, &wider, -1, &grown, nullptr), ncclInvalidArgument);
        EXPECT_EQ(ncclCommGrow(comm, 4, &wider, r, &grown, nullptr), ncclInvalidArgument);
        OURO_OK(ncclCommGrow(comm, 4, r == 0 ? &wider : nullptr, -1, &grown, nullptr));
        EXPECT_OK(ncclCommDestroy(comm));
      } else {
        OURO_OK(ncclCommGrow(nullptr, 4, &wider, r, &grown, nullptr));
      }
      int mine = -1;
      EXPECT_OK(ncclCommUserRank(grown, &mine));
      EXPECT_EQ(mine, r);
      EXPECT_EQ(sum_of(grown, r), 6);
      EXPECT_OK(ncclCommDestroy(grown));
    });
  for (auto& t : threads) t.join();
}

TEST(Init, RanksJoinByOneOfSeveralIds) {
  ncclUniqueId ids[2];
  for (auto& id : ids) OURO_OK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr;
      OURO_OK(ncclCommInitRankScalable(&comm, 3, r, 2, ids, nullptr));
      EXPECT_EQ(sum_of(comm, r), 3);
      EXPECT_OK(ncclCommDestroy(comm));
    });
  for (auto& t : threads) t.join();
}

TEST(Init, KeepsTheDevicesOfTheList) {
  const int devices[] = {3, 3, 0};
  ncclComm_t comms[3];
  OURO_OK(ncclCommInitAll(comms, 3, devices));
  for (int r = 0; r < 3; ++r) {
    int device = -1;
    EXPECT_OK(ncclCommCuDevice(comms[r], &device));
    EXPECT_EQ(device, devices[r]);
    EXPECT_OK(ncclCommDestroy(comms[r]));
  }
}

TEST(NonBlocking, AllCallsReturnAtOnceAndArePolled) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2] = {}, children[2] = {};
  for (int r = 0; r < 2; ++r) ASSERT_EQ(ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
  for (auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  int in[2] = {1, 2}, out[2] = {};
  for (int r = 0; r < 2; ++r)  // without a group: neither waits for the other
    ASSERT_EQ(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclSum, comms[r], nullptr), ncclInProgress);
  for (auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  EXPECT_EQ(out[0] + out[1], 6);
  for (int r = 0; r < 2; ++r)
    ASSERT_EQ(ncclCommSplit(comms[r], 0, -r, &children[r], nullptr), ncclInProgress);
  for (auto c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  for (auto c : children) ASSERT_NE(c, nullptr);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < 2; ++r)
    OURO_OK(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclProd, children[r], nullptr));
  ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
  for (auto c : children) ASSERT_EQ(settle(c), ncclSuccess);
  EXPECT_EQ(out[0] + out[1], 4);
  for (auto c : comms) EXPECT_EQ(ncclCommFinalize(c), ncclInProgress);
  for (auto c : comms) EXPECT_EQ(settle(c), ncclSuccess);
  for (auto c : children) EXPECT_OK(ncclCommDestroy(c));
  for (auto c : comms) EXPECT_OK(ncclCommDestroy(c));
}

TEST(TimedRevoke, EndsPendingOperationsAndStillAllowsSplitAndShrink) {
  std::atomic<int> waiting{0};
  in_threads(3, [&](int rank, ncclComm_t comm) {
    EXPECT_EQ(sum_of(comm, 1), 3);
    EXPECT_EQ(ncclCommRevoke(comm, 1), ncclInvalidArgument);
    if (rank != 2) {
      ++waiting;
      int x = 1, y;
      EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclRemoteError);
    } else {
      while (waiting < 2) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_OK(ncclCommRevoke(comm, 0));
    EXPECT_EQ(ncclCommRevoke(comm, 0), ncclInvalidArgument);
    int x = 1, y;
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidUsage);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidUsage);
    ncclComm_t child = nullptr;
    OURO_OK(ncclCommSplit(comm, 0, rank, &child, nullptr));
    EXPECT_EQ(sum_of(child, rank), 3);
    EXPECT_OK(ncclCommDestroy(child));
  });
}

TEST(End, AFinalizeThatIsDroppedWithItsGroupLeavesTheCommunicatorOpen) {
  for (const bool simulated : {false, true})
    in_threads(2, [&](int rank, ncclComm_t comm) {
      OURO_OK(ncclGroupStart());
      EXPECT_OK(ncclCommFinalize(comm));
      if (simulated) {
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        EXPECT_OK(ncclGroupSimulateEnd(&info));
      } else {
        EXPECT_NE(ncclCommFinalize(comm), ncclSuccess);
        EXPECT_NE(ncclGroupEnd(), ncclSuccess);
      }
      EXPECT_EQ(sum_of(comm, rank), 1);
      EXPECT_OK(ncclCommFinalize(comm));
    });
}

TEST(End, UseAfterFinalizeOrDestroyIsRefused) {
  in_threads(2, [](int, ncclComm_t comm) {
    ncclComm_t child = nullptr;
    OURO_OK(ncclCommSplit(comm, 0, 0, &child, nullptr));
    EXPECT_OK(ncclCommFinalize(child));
    EXPECT_EQ(ncclCommFinalize(child), ncclInvalidArgument);
    int x = 1, y;
    EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, child, nullptr), ncclInvalidArgument);
    EXPECT_OK(ncclCommDestroy(child));
    EXPECT_EQ(ncclCommDestroy(child), ncclInvalidArgument);
    EXPECT_EQ(ncclCommCount(child, &y), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("destroyed"));
  });
  EXPECT_OK(ncclCommFinalize(nullptr));
  EXPECT_OK(ncclCommDestroy(nullptr));
  EXPECT_OK(ncclCommAbort(nullptr));
  EXPECT_OK(ncclCommRevoke(nullptr, 0));
}

int entries(const char* path) {
  int n = 0;
  DIR* dir = opendir(path);
  while (readdir(dir)) ++n;
  closedir(dir);
  return n;
}
long resident_pages() {
  long all = 0, resident = 0;
  FILE* f = std::fopen("/proc/self/statm", "re");
  EXPECT_EQ(std::fscanf(f, "%ld %ld", &all, &resident), 2);
  std::fclose(f);
  return resident;
}

/// Running `cycle(times)` leaves no descriptor, no thread and no memory behind.
void expect_flat(const std::function<void(int times)>& cycle, int times) {
  cycle(300);                                                   // more than the quarantine of handles holds
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for what is released with a delay
  const int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  const long pages = resident_pages();
  cycle(times);
  // What ends in the background is released a moment later.
  for (const auto end = std::chrono::steady_clock::now() + kHang;
       (entries("/proc/self/fd") != fds || entries("/proc/self/task") != threads) &&
       std::chrono::steady_clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(entries("/proc/self/fd"), fds);
  EXPECT_EQ(entries("/proc/self/task"), threads);
#if defined(__SANITIZE_THREAD__)
  constexpr long kPages = 4096;  // the sanitizer remembers what ended threads did
#elif defined(__SANITIZE_ADDRESS__)
  constexpr long kPages = 1 << 17;  // it keeps 256 MiB of freed memory; LeakSanitizer checks the rest
#else
  constexpr long kPages = 512;  // 2 MiB
#endif
  EXPECT_LT(resident_pages() - pages, kPages);
}

/// With unique ids, a child, messages and a user-defined reduction, on ranks that end in any order.
TEST(End, OfAllThatACommunicatorCanHaveLeavesNothingBehind) {
  const auto cycle = [](int times) {
    for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i)
      in_threads(2, [i](int rank, ncclComm_t& comm) {
        ncclComm_t child = nullptr;
        OURO_OK(ncclCommSplit(comm, 0, -rank, &child, nullptr));
        int x = 1, y = 0;
        ncclRedOp_t op;
        OURO_OK(ncclRedOpCreatePreMulSum(&op, &x, ncclInt32, ncclScalarHostImmediate, comm));
        OURO_OK(ncclGroupStart());
        OURO_OK(ncclSend(&x, 1, ncclInt32, 1 - rank, child, nullptr));
        OURO_OK(ncclRecv(&y, 1, ncclInt32, 1 - rank, child, nullptr));
        OURO_OK(ncclGroupEnd());
        OURO_OK(ncclAllReduce(&x, &y, 1, ncclInt32, op, comm, nullptr));
        ASSERT_EQ(y, 2);
        if (i % 2 == rank) {
          const ncclResult_t ended = ncclCommFinalize(child);
          if (ended != ncclRemoteError || i % 3 != 0) OURO_OK(ended);  // the other rank may have aborted it
        }
        OURO_OK(i % 3 == 0 ? ncclCommAbort(child) : ncclCommDestroy(child));
      });
  };
  expect_flat(cycle, 300);
}

TEST(End, AThousandTimesLeavesNothingBehind) {
  const auto cycle = [](int times) {
    for (int i = 0; i < times; ++i) {
      ncclComm_t comms[2];
      int in = 1, out[2] = {};
      OURO_OK(ncclCommInitAll(comms, 2, nullptr));
      OURO_OK(ncclGroupStart());
      for (int r = 0; r < 2; ++r)
        OURO_OK(ncclAllReduce(&in, &out[r], 1, ncclInt32, ncclSum, comms[r], nullptr));
      OURO_OK(ncclGroupEnd());
      ASSERT_EQ(out[1], 2);
      for (auto c : comms) OURO_OK(ncclCommDestroy(c));
    }
  };
  expect_flat(cycle, 1000);
}

}  // namespace
}  // namespace ouro::test
