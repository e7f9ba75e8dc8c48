// The ucx fabric when a peer dies or is dropped, or when resources are missing; and what it leaves behind.
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/timing.h"
#include "tests/transport/net/ucx/lab.h"
#include "transport/net/ucx/ucx_api.h"
#include "transport/net/ucx/ucx_worker.h"

extern char** environ;

namespace ouro::transport {
namespace {

class UcxFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (auto api = UcxApi::load(); !api.ok()) GTEST_SKIP() << "no UCX: " << api.status().message();
  }
};

/// Rank 1 in a process of its own (peer.cc).
class Process {
 public:
  void start(Rank& me) {
    int in[2], out[2];
    ASSERT_TRUE(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "ucx_peer";
    char* const args[] = {const_cast<char*>(program.c_str()), nullptr};
    const int e = posix_spawn(&pid_, program.c_str(), &files, nullptr, args, environ);
    posix_spawn_file_actions_destroy(&files);
    ::close(in[0]);
    ::close(out[1]);
    ASSERT_EQ(e, 0) << program;
    std::uint32_t bytes = 0;
    ASSERT_EQ(read(out[0], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
    std::vector<std::uint8_t> address(bytes);
    ASSERT_EQ(read(out[0], address.data(), bytes), static_cast<ssize_t>(bytes));
    const auto mine = me.fabric().address();
    bytes = static_cast<std::uint32_t>(mine.size());
    ASSERT_EQ(write(in[1], &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
    ASSERT_EQ(write(in[1], mine.data(), bytes), static_cast<ssize_t>(bytes));
    ::close(in[1]);
    ::close(out[0]);
    me.fabric().connect(1, address);
  }
  void stop() { ASSERT_EQ(::kill(pid_, SIGSTOP), 0); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  ~Process() { kill(); }

 private:
  pid_t pid_ = -1;
};

TEST_F(UcxFailure, ChunksTravelBetweenProcesses) {
  Rank me(0);
  Process peer;
  ASSERT_NO_FATAL_FAILURE(peer.start(me));
  NetLink& link = me.open(7, 1, 65536);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::size_t bytes = i * 331 % 65537;
    ASSERT_TRUE(me.send(link, 7, i, bytes, 1));
    ASSERT_EQ(me.receive(link, 7, i, bytes), "");
  }
}

TEST_F(UcxFailure, PeerThatCannotBeReconnectedIsNamed) {
  Rank me(0);
  Process peer;
  ASSERT_NO_FATAL_FAILURE(peer.start(me));
  NetLink& link = me.open(7, 1, 65536);
  ASSERT_TRUE(me.send(link, 7, 0, 8, 1));
  ASSERT_EQ(me.receive(link, 7, 0, 8), "");
  peer.kill();
  const auto start = Clock::now();
  ASSERT_TRUE(me.send(link, 7, 1, 65536, 1));
  EXPECT_TRUE(eventually([&] { return !me.failure(1).ok(); }));
  EXPECT_LT(Clock::now() - start, test::kHang);
  EXPECT_EQ(me.failure(1).reason(), Reason::link_lost) << me.failure(1).message();
  EXPECT_EQ(me.failure(1).failure()->rank, 1);
}

TEST_F(UcxFailure, PeerDeathMidTransferReleasesItsFrames) {
  Rank me(0);
  Process peer;
  ASSERT_NO_FATAL_FAILURE(peer.start(me));
  NetLink& link = me.open(7, 1, 65536);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(me.send(link, 7, i, 65536, 1));
  peer.kill();
  const auto start = Clock::now();
  EXPECT_TRUE(eventually([&] { return !me.failure(1).ok(); }));
  EXPECT_LT(Clock::now() - start, test::kHang);
  const auto link_set = me.close(7);
  EXPECT_TRUE(eventually([&] { return link_set.expired(); })) << "a dead peer's frames keep their memory";
}

TEST_F(UcxFailure, PeerThatDiedBeforeItsFirstUseIsReported) {
  Rank me(0);
  Process peer;
  ASSERT_NO_FATAL_FAILURE(peer.start(me));
  peer.kill();
  const auto start = Clock::now();
  me.open(7, 1, 4096);
  EXPECT_TRUE(eventually([&] { return !me.failure(1).ok(); }));
  EXPECT_LT(Clock::now() - start, test::kHang);
  EXPECT_EQ(me.failure(1).reason(), Reason::link_lost);
}

TEST_F(UcxFailure, DroppedPeerDeliversNothingAndOthersContinue) {
  Rank a(0, 3), b(1, 3), c(2, 3);
  for (Rank* x : {&a, &b, &c})
    for (Rank* y : {&a, &b, &c})
      if (x != y) x->knows(*y);
  NetLink &ab = a.open(7, 1, 4096), &ba = b.open(7, 0, 4096), &ac = a.open(8, 2, 4096),
          &ca = c.open(8, 0, 4096);
  ASSERT_TRUE(b.send(ba, 7, 0, 8, 0));
  ASSERT_EQ(a.receive(ab, 7, 0, 8), "");
  a.fabric().drop(1);
  for (std::uint64_t i = 1; i < 4; ++i) ASSERT_TRUE(b.send(ba, 7, i, 8, 0));
  EXPECT_FALSE(a.await(*ab.in().full, 2, 300ms));
  for (std::uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(c.send(ca, 8, i, 4096, 0));
    ASSERT_EQ(a.receive(ac, 8, i, 4096), "");
  }
  EXPECT_TRUE(a.failure(1).ok()) << "whoever drops a peer knows it already";
}

using TimedUcxFailure = UcxFailure;
TEST_F(TimedUcxFailure, EndsWithinASecondWithFramesOnTheirWay) {
  auto a = std::make_unique<Rank>(0), b = std::make_unique<Rank>(1);
  a->knows(*b);
  b->knows(*a);
  NetLink& la = a->open(7, 1, 1 << 20);
  b->open(7, 0, 1 << 20);
  for (std::uint64_t i = 0; i < 8; ++i) a->send(la, 7, i, 1 << 20, 1);
  const auto start = Clock::now();
  a.reset();
  b.reset();
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST_F(UcxFailure, LeavingIsSafeWhileThePeerIsStopped) {
  Process peer;
  {
    Rank me(0);
    ASSERT_NO_FATAL_FAILURE(peer.start(me));
    NetLink& link = me.open(7, 1, 65536);
    ASSERT_TRUE(me.send(link, 7, 0, 8, 1));
    ASSERT_EQ(me.receive(link, 7, 0, 8), "");
    peer.stop();
  }  // UCX 1.13 ends the process if its worker goes while a closing of ours is under way
}

/// Ends all connections of this process, as a reset by a third party does.
int cut_connections() {
  int cut = 0;
  for (const auto& e : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(e.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family == AF_INET)
      cut += shutdown(fd, SHUT_RDWR) == 0;
  }
  return cut;
}

TEST_F(UcxFailure, CutConnectionIsReconnectedWithoutLoss) {
  Rank a(0), b(1);
  a.knows(b);
  b.knows(a);
  NetLink &la = a.open(7, 1, 65536), &lb = b.open(7, 0, 65536);
  int cuts = 0;
  for (std::uint64_t i = 0; i < 160; ++i) {
    const std::size_t bytes = i * 1331 % 65537;
    ASSERT_TRUE(a.send(la, 7, i, bytes, 1));
    ASSERT_TRUE(b.send(lb, 7, i, bytes, 0));
    if (i % 40 == 20) cuts += cut_connections();  // with frames in flight in both directions
    ASSERT_EQ(b.receive(lb, 7, i, bytes), "");
    ASSERT_EQ(a.receive(la, 7, i, bytes), "");
  }
  EXPECT_GE(cuts, 4);
  EXPECT_TRUE(a.failure(1).ok()) << a.failure(1).message();
  EXPECT_TRUE(b.failure(0).ok()) << b.failure(0).message();
}

constexpr std::array kSignals{SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};
std::array<sighandler_t, kSignals.size()> handlers() {
  std::array<sighandler_t, kSignals.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    struct sigaction now {};
    sigaction(kSignals[i], nullptr, &now);
    all[i] = now.sa_handler;
  }
  return all;
}
const auto g_before = handlers();  // the first test has loaded UCX

TEST_F(UcxFailure, SignalHandlersAreNotChanged) { EXPECT_EQ(handlers(), g_before); }

TEST_F(UcxFailure, MissingInterfaceIsAnError) {
  auto made = UcxFabric::create({.rank = 0, .world = 2, .devices = "nosuch0", .failed = [](int, Status) {}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().reason(), Reason::resource) << made.status().message();
}

TEST(UcxDevices, RdmaOfAnInterfaceIsFoundByItsPorts) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("ouro-rdma-" + std::to_string(getpid()));
  const auto port = [&](const char* device, const char* number, std::initializer_list<const char*> names) {
    const fs::path folder = root / device / "ports" / number / "gid_attrs" / "ndevs";
    fs::create_directories(folder);
    for (int i = 0; const char* name : names) std::ofstream(folder / std::to_string(i++)) << name << "\n";
  };
  port("mlx5_1", "1", {"eth0", "eth0"});
  port("mlx5_0", "1", {"ib0"});
  port("mlx5_0", "2", {"eth1", "eth0"});
  using Devices = std::vector<std::string>;
  EXPECT_EQ(rdma_devices("eth0", root), (Devices{"mlx5_0:2", "mlx5_1:1"}));
  EXPECT_EQ(rdma_devices("ib0", root), (Devices{"mlx5_0:1"}));
  EXPECT_EQ(rdma_devices("eth", root), Devices{});
  EXPECT_EQ(rdma_devices("eth0", root / "none"), Devices{});
  fs::remove_all(root);
}

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

TEST_F(UcxFailure, LeavesNoDescriptorsAndNoThreads) {
  const auto once = [] {
    Rank a(0), b(1);
    a.knows(b);
    b.knows(a);
    NetLink &la = a.open(7, 1, 4096), &lb = b.open(7, 0, 4096);
    ASSERT_TRUE(a.send(la, 7, 0, 100, 1));
    ASSERT_EQ(b.receive(lb, 7, 0, 100), "");
    a.fabric().exchange().forgive(1);  // both leave in good order, so neither is to be connected again
    b.fabric().exchange().forgive(0);
  };
  once();  // for what UCX allocates only once
  const std::size_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int i = 0; i < 10; ++i) ASSERT_NO_FATAL_FAILURE(once());
  EXPECT_TRUE(eventually([&] { return entries("/proc/self/fd") <= descriptors; }));
  EXPECT_LE(entries("/proc/self/task"), threads);
}

}  // namespace
}  // namespace ouro::transport
