// Many communicators at once, and strangers where ranks meet.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>

#include "ranks.h"

namespace ouro::test {
namespace {

/// Three communicators over the same ranks, each driven by threads of its own, made and used all at the same
/// time.
TEST(Stress, CommunicatorsOfOneProcessDoNotDisturbEachOther) {
  constexpr int kComms = 3, kRanks = 3, kRounds = 300;
  std::vector<std::thread> threads;
  for (int k = 0; k < kComms; ++k)
    threads.emplace_back([k] {
      in_threads(kRanks, [k](int rank, ncclComm_t comm) {
        for (int i = 0; i < kRounds; ++i) {
          const int mine = (rank + 1) * (k + 1) + i;
          int sum = 0;
          ASSERT_EQ(ncclAllReduce(&mine, &sum, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
          ASSERT_EQ(sum, 6 * (k + 1) + kRanks * i);
        }
      });
    });
  for (auto& t : threads) t.join();
}

/// Non-blocking communicators of one thread, whose operations end in another order than they were called in.
TEST(Stress, OperationsOfSeveralCommunicatorsEndInAnyOrder) {
  constexpr int kComms = 3;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[kComms][2] = {};
  for (auto& pair : comms) {
    ncclUniqueId id;
    OURO_OK(ncclGetUniqueId(&id));
    for (int r = 0; r < 2; ++r)
      ASSERT_EQ(ncclCommInitRankConfig(&pair[r], 2, id, r, &config), ncclInProgress);
  }
  for (auto& pair : comms)
    for (auto c : pair) ASSERT_EQ(settle(c), ncclSuccess);
  for (int round = 0; round < 50; ++round) {
    int in[kComms][2], out[kComms][2] = {};
    for (int k = 0; k < kComms; ++k)  // rank 0 in this order, rank 1 in the opposite one
      for (int r = 0; r < 2; ++r) {
        const int at = r == 0 ? k : kComms - 1 - k;
        in[at][r] = at + r + round;
        ASSERT_EQ(ncclAllReduce(&in[at][r], &out[at][r], 1, ncclInt32, ncclSum, comms[at][r], nullptr),
                  ncclInProgress);
      }
    for (auto& pair : comms)
      for (auto c : pair) ASSERT_EQ(settle(c), ncclSuccess);
    for (int k = 0; k < kComms; ++k)
      for (int r = 0; r < 2; ++r) ASSERT_EQ(out[k][r], 2 * (k + round) + 1);
  }
  for (auto& pair : comms)
    for (auto c : pair) EXPECT_OK(ncclCommDestroy(c));
}

/// Where the ranks of an id meet: a name in which its random part is written.
std::string meeting_name(const ncclUniqueId& id) {
  std::string name = "ouro/";
  for (int i = 8; i < 24; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(id.internal[i]));
    name += two;
  }
  return name;
}

/// Connects there, and talks nonsense. False: nobody listens yet, or any more.
bool disturb(const std::string& name) {
  const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), to.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const char nonsense[] = "GET / HTTP/1.1\r\n\r\n";
  const bool spoken = connect(s, reinterpret_cast<sockaddr*>(&to), bytes) == 0 &&
                      send(s, nonsense, sizeof nonsense, MSG_NOSIGNAL) > 0;
  close(s);
  return spoken;
}

TEST(Stress, StrangersWhereRanksMeetDoNotDisturbThem) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  std::atomic<int> spoken{0};
  std::atomic<bool> done{false};
  std::thread first([&] {
    ncclComm_t comm = nullptr;
    OURO_OK(ncclCommInitRank(&comm, 2, id, 0));
    EXPECT_OK(ncclCommDestroy(comm));
  });
  std::thread stranger([&] {
    while (!done) spoken += disturb(meeting_name(id));
  });
  for (int i = 0; i < 2000 && spoken < 50; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(spoken, 50);
  ncclComm_t comm = nullptr;
  EXPECT_OK(ncclCommInitRank(&comm, 2, id, 1));
  done = true;
  stranger.join(), first.join();
  EXPECT_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace ouro::test
