// Many communicators at the same time, and strangers at the port where ranks meet.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "ranks.h"

namespace ouro::test {
namespace {

/// Three communicators over the same ranks, each driven by its own threads, created and used at the
/// same time.
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
    for (int k = 0; k < kComms; ++k)  // rank 0 in this order, rank 1 in reverse
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

/// The address where the ranks of an id report; the id contains it as "address:port".
sockaddr_in meeting_place(const ncclUniqueId& id) {
  const std::string place(id.internal + 72);
  const std::size_t colon = place.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(place.substr(colon + 1))));
  EXPECT_EQ(inet_pton(AF_INET, place.substr(0, colon).c_str(), &to.sin_addr), 1) << place;
  return to;
}

/// Connects there and sends nonsense, shorter or longer than a report, or nothing.
bool disturb(const sockaddr_in& to, int kind) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string nonsense =
      kind % 3 == 0 ? "GET / HTTP/1.1\r\n\r\n" : std::string(kind % 3 == 1 ? 184 : 5000, 'x');
  const bool spoken = connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
                      send(s, nonsense.data(), nonsense.size(), MSG_NOSIGNAL) > 0;
  close(s);
  return spoken;
}

TEST(Stress, ForeignConnectionsDoNotDisturbJoiningRanks) {
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
    for (int kind = 0; !done; ++kind) spoken += disturb(meeting_place(id), kind);
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
