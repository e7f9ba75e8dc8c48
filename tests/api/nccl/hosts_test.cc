// Communicators over several hosts: processes that take themselves for separate hosts (OURO_HOSTID), and the
// roll call of their ranks. hosts_test.py tests hosts that are network namespaces.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

/// Sets which ranks are on one host: the first half and the second ("halves"), alternating ("mixed"), or each
/// alone ("apart").
void settle_on_host(int rank, int size, const std::string& how) {
  if (how == "apart")
    setenv("NCCL_SHM_DISABLE", "1", 1);
  else
    setenv("NCCL_HOSTID", how == "halves" ? (rank < size / 2 ? "one" : "two") : rank % 2 ? "odd" : "even", 1);
}

int collectives(int rank, int size, ncclUniqueId id, const std::string& how) {
  settle_on_host(rank, size, how);
  return run_steps(rank, size, id, "types");
}
const KnownScenario kCollectives("hosts_collectives", collectives);

TEST(Hosts, EveryCollectiveIsRightForEveryTypeAndReduction) {
  EXPECT_THAT(spawn(4, "hosts_collectives", "halves"), Each(0));
  EXPECT_THAT(spawn(3, "hosts_collectives", "mixed"), Each(0));
  EXPECT_THAT(spawn(2, "hosts_collectives", "apart"), Each(0));
}

int sum_of(ncclComm_t comm, int mine) {
  int out = -1;
  EXPECT_OK(ncclAllReduce(&mine, &out, 1, ncclInt32, ncclSum, comm, nullptr));
  return out;
}

/// Messages of all pairs, derived communicators, and the reported hosts.
int life(int rank, int size, ncclUniqueId id, const std::string& how) {
  settle_on_host(rank, size, how);
  ncclComm_t comm = nullptr, child = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) {
    std::fprintf(stderr, "%s\n", ncclGetLastError(nullptr));
    return 2;
  }
  std::vector<int> mine(static_cast<std::size_t>(size) * 50'000, rank), theirs(mine.size());
  EXPECT_OK(ncclGroupStart());
  for (int p = 0; p < size; ++p) {
    EXPECT_OK(ncclSend(mine.data() + 50'000 * p, 50'000, ncclInt32, p, comm, nullptr));
    EXPECT_OK(ncclRecv(theirs.data() + 50'000 * p, 50'000, ncclInt32, p, comm, nullptr));
  }
  EXPECT_OK(ncclGroupEnd());
  for (int p = 0; p < size; ++p) EXPECT_EQ(theirs[50'000 * static_cast<std::size_t>(p) + 49'999], p);
  EXPECT_OK(ncclCommSplit(comm, rank % 2, -rank, &child, nullptr));
  EXPECT_EQ(sum_of(child, rank), rank % 2 ? 4 : 2);
  EXPECT_OK(ncclCommDestroy(child));
  const ncclTeam_t lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  EXPECT_OK(ncclCommQueryProperties(comm, &properties));
  if (how == "halves") {
    EXPECT_TRUE(lsa.nRanks == 2 && lsa.rank == rank % 2 && lsa.stride == 1);
    EXPECT_TRUE(rail.nRanks == 2 && rail.rank == rank / 2 && rail.stride == 2);
    EXPECT_EQ(ncclTeamRankToWorld(comm, lsa, 0), rank / 2 * 2);
    EXPECT_EQ(ncclTeamRankToWorld(comm, rail, 1), rank % 2 + 2);
    EXPECT_EQ(ncclTeamRankToLsa(comm, ncclTeamWorld(comm), rank ^ 1), (rank ^ 1) % 2);
    EXPECT_EQ(ncclTeamRankToLsa(comm, ncclTeamWorld(comm), (rank + 2) % 4), -1);
    EXPECT_EQ(properties.nLsaTeams, 2);
  } else {  // ranks that are not adjacent cannot compute the addresses of the others
    EXPECT_TRUE(lsa.nRanks == 1 && lsa.rank == 0);
    EXPECT_TRUE(rail.nRanks == 4 && rail.rank == rank && rail.stride == 1);
    EXPECT_EQ(properties.nLsaTeams, 4);
  }
  if (rank == 3) kill(getpid(), SIGKILL);
  int x = 1, y = 0, gone = 3;
  EXPECT_EQ(ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, nullptr), ncclRemoteError);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 3"));
  EXPECT_OK(ncclCommShrink(comm, &gone, 1, &child, nullptr, NCCL_SHRINK_ABORT));
  EXPECT_EQ(sum_of(child, rank), 3);
  EXPECT_OK(ncclCommAbort(comm));
  EXPECT_OK(ncclCommDestroy(child));
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
const KnownScenario kLife("hosts_life", life);

TEST(Hosts, MessagesAndSplitsWorkAndADeadRankIsReported) {
  EXPECT_THAT(spawn(4, "hosts_life", "halves"), ElementsAre(0, 0, 0, -SIGKILL));
  EXPECT_THAT(spawn(4, "hosts_life", "mixed"), ElementsAre(0, 0, 0, -SIGKILL));
  EXPECT_THAT(spawn(4, "hosts_life", "apart"), ElementsAre(0, 0, 0, -SIGKILL));
}

/// NCCL_COMM_ID: every rank makes the id by itself, and rank 0 starts to listen there late.
int by_address(int rank, int size, ncclUniqueId, const std::string& place) {
  setenv("NCCL_COMM_ID", place.c_str(), 1);
  if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  for (int i = 0; i < 2; ++i) {
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) {
      std::fprintf(stderr, "%s\n", ncclGetLastError(nullptr));
      return 2;
    }
    if (sum_of(comm, rank) != size * (size - 1) / 2 || ncclCommDestroy(comm) != ncclSuccess) return 3;
  }
  return 0;
}
const KnownScenario kByAddress("by_address", by_address);

/// A port without a listener that the system gives only to processes that ask for it.
int free_port() {
  for (int i = 0; i < 1000; ++i) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(20'000 + (getpid() + i) % 10'000));
    const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = bind(s, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
    close(s);
    if (free) return ntohs(at.sin_port);
  }
  return 0;
}

TEST(TimedRollCall, RanksJoinAtAnAddressThatAllKnow) {
  const int port = free_port();
  ASSERT_NE(port, 0);
  EXPECT_THAT(spawn(3, "by_address", fmt::format("127.0.0.1:{}", port)), Each(0));
}

TEST(TimedRollCall, MissingRanksAreNamedAtTheDeadline) {
  setenv("OURO_JOIN_DEADLINE", "0.5", 1);
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (const int r : {0, 2})
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr;
      const auto begin = Clock::now();
      EXPECT_EQ(ncclCommInitRank(&comm, 4, id, r), ncclRemoteError);
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
    });
  for (auto& t : threads) t.join();
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ranks {1,3} have not"));
  unsetenv("OURO_JOIN_DEADLINE");
}

constexpr std::size_t kPlaceInId = 72;  // offset of the address in an id

/// Opens connections to the address where the ranks of an id report, and sends nothing.
std::vector<int> strangers(const ncclUniqueId& id, int many) {
  const std::string place(reinterpret_cast<const char*>(&id) + kPlaceInId);
  const std::size_t colon = place.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(place.substr(colon + 1))));
  EXPECT_EQ(inet_pton(AF_INET, place.substr(0, colon).c_str(), &to.sin_addr), 1) << place;
  std::vector<int> sockets;
  for (int k = 0; k < many; ++k) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(sockets.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  return sockets;
}

TEST(TimedRollCall, ForeignConnectionsAndManyRanksDoNotKeepARankOut) {
  setenv("OURO_JOIN_DEADLINE", "6", 1);
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  const std::vector<int> silent = strangers(id, 300);
  constexpr int kRanks = 100;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, kRanks + 1, id, r), ncclRemoteError);
    });
  for (auto& t : threads) t.join();
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("100 of 101 ranks have reported; ranks {100} have not"));
  for (const int s : silent) close(s);
  unsetenv("OURO_JOIN_DEADLINE");
}

/// All ranks that have reported, and those that report later, hear why the communicator cannot be made.
void expect_told(const std::vector<std::pair<int, int>>& rank_of_world, const std::string& words) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::vector<ncclComm_t> comms;
  for (const auto& [rank, world] : rank_of_world)
    ASSERT_EQ(ncclCommInitRankConfig(&comms.emplace_back(), world, id, rank, &config), ncclInProgress);
  for (const ncclComm_t c : comms) {
    EXPECT_EQ(settle(c), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(c), HasSubstr(words));
  }
  ncclComm_t late = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&late, rank_of_world[0].second, id, 2, &config), ncclInProgress);
  EXPECT_EQ(settle(late), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(late), HasSubstr(words));
  comms.push_back(late);
  for (const ncclComm_t c : comms) EXPECT_OK(ncclCommAbort(c));
}

TEST(RollCall, RankThatJoinsTwiceFailsTheJoinForAll) {
  const std::string me = fmt::format("pid {} at ", getpid());
  expect_told({{0, 3}, {1, 3}, {1, 3}}, fmt::format("rank 1 of 3 has reported twice: {}", me));
}

/// A rank whose connection has broken reports again, while the listener still takes the first connection for
/// alive: it has not come twice.
TEST(RollCall, RankWhoseConnectionBrokeMayJoinAgain) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  const int between = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* const generic = reinterpret_cast<sockaddr*>(&at);
  ASSERT_TRUE(::bind(between, generic, size) == 0 && ::listen(between, 4) == 0 &&
              ::getsockname(between, generic, &size) == 0);
  ncclUniqueId by_way = id;  // with the address of the socket between
  std::string place = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
  place.resize(sizeof id - kPlaceInId, '\0');
  place.copy(reinterpret_cast<char*>(&by_way) + kPlaceInId, place.size());
  std::atomic<bool> again{false};
  std::thread passes([&] {
    const int first = ::accept(between, nullptr, nullptr), kept = strangers(id, 1)[0];
    char bytes[4096];
    ssize_t n = ::recv(first, bytes, sizeof bytes, 0);
    EXPECT_EQ(::send(kept, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL), n);
    ::close(first);
    const int second = ::accept(between, nullptr, nullptr), whole = strangers(id, 1)[0];
    n = ::recv(second, bytes, sizeof bytes, 0);
    EXPECT_EQ(::send(whole, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL), n);
    again.store(true);
    while ((n = ::recv(whole, bytes, sizeof bytes, 0)) > 0)
      EXPECT_EQ(::send(second, bytes, static_cast<std::size_t>(n), MSG_NOSIGNAL), n);
    for (const int s : {kept, second, whole}) ::close(s);
  });
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t one = nullptr, zero = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&one, 2, by_way, 1, &config), ncclInProgress);
  for (const auto end = Clock::now() + kHang; !again.load() && Clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(ncclCommInitRankConfig(&zero, 2, id, 0, &config), ncclInProgress);
  EXPECT_OK(settle(one));
  EXPECT_OK(settle(zero));
  passes.join();
  ::close(between);
  for (const ncclComm_t c : {one, zero}) EXPECT_OK(ncclCommAbort(c));
}

TEST(RollCall, DifferentNumberOfRanksFailsTheJoinForAll) {
  expect_told({{0, 3}, {1, 4}}, "says that there are ");
}

}  // namespace
}  // namespace ouro::test
