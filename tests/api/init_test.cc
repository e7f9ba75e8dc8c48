// How ranks join a job: addresses instead of ids, a GPU for each rank, and threads that cannot be started.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/fd.h"
#include "tests/runtime/group/ranks.h"
#include "transport/net/ucx/ucx.h"

namespace ouro {
namespace {

/// A port of the loopback interface that is free at the moment.
int free_port() {
  const Fd s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  EXPECT_EQ(::bind(s.get(), reinterpret_cast<const sockaddr*>(&at), size), 0);
  EXPECT_EQ(::getsockname(s.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  return ntohs(at.sin_port);
}

/// Two ranks join with options changed by `change`, and add up their numbers.
template <class F>
std::string meet(F&& change) {
  std::string said[2];
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      InitOptions o = test::quick_options();
      o.rank = r, o.world_size = 2;
      change(o);
      auto c = Context::create(o);
      if (!c.ok()) return void(said[r] = c.status().message());
      int sum = r + 1;
      const Status s = all_reduce(c->world(), std::span<const int>(&sum, 1), std::span(&sum, 1));
      said[r] = !s.ok() ? s.message() : sum == 3 ? "" : fmt::format("{}", sum);
      if (const Status closed = c->close(); !closed.ok()) said[r] += closed.message();
    });
  for (std::thread& t : ranks) t.join();
  return said[0] + said[1];
}

TEST(Init, RanksOfOneHostJoinByAddressWithoutPort) {
  EXPECT_EQ("", meet([](InitOptions& o) { o.address = "127.0.0.1"; }));
}

TEST(Init, RanksOfSeveralHostsJoinByAddressAndPort) {
  setenv("OURO_SOCKET_IFNAME", "lo", 1);
  setenv("OURO_INSECURE", "1", 1);
  const int port = free_port();
  EXPECT_EQ("", meet([&](InitOptions& o) {
              o.address = "127.0.0.1", o.port = port;
              o.local_rank = 0, o.local_size = 1;
              o.host_id = fmt::format("host-{}", *o.rank);
            }));
}

TEST(Init, IncompleteJobOptionsAreRefused) {
  const auto code = [](const InitOptions& o) { return Context::create(o).status().code(); };
  EXPECT_EQ(code({.rank = 0}), Code::invalid);
  EXPECT_EQ(code({.world_size = 2}), Code::invalid);
  EXPECT_EQ(code({.rank = 0, .world_size = 2}), Code::invalid);
  EXPECT_EQ(code({.rank = 0, .world_size = 1, .port = 4000}), Code::invalid);
  EXPECT_EQ(code({.rank = 0, .world_size = 1, .address = "127.0.0.1", .port = 65536}), Code::invalid);
  EXPECT_EQ(code({.rank = 0, .world_size = 1, .address = "127.0.0.1", .port = -1}), Code::invalid);
}

/// On one host: settings that would stop the job on a cluster stop it here, too.
TEST(Init, WrongMultiHostSettingsAreRefusedOnOneHostToo) {
  const auto alone = [](std::vector<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const Status s = Context::create({.rank = 0, .world_size = 1}).status();
    for (const auto& [name, value] : variables) unsetenv(name);
    return s.ok() ? std::string("joined") : s.message();
  };
  for (const auto& [name, value, says] : {std::tuple{"OURO_SECURITY", "strong", "expected auth|tls"},
                                          {"OURO_FABRIC", "pigeon", "expected tcp|ucx|trusted"},
                                          {"OURO_CHECKSUM", "maybe", "expected 1 or 0"},
                                          {"OURO_TCP_CONNECTIONS", "17", "expected an integer in 1..16"},
                                          {"OURO_SILENT_WARN", "soon", "expected a number in 0.3..3600"},
                                          {"OURO_SILENT_FAIL", "0.1", "expected a number in 0.6..3600"},
                                          {"OURO_INSECURE", "yes", "expected 0|1"},
                                          {"OURO_RENDEZVOUS", "node1", "expected HOST:PORT"},
                                          {"OURO_RENDEZVOUS", "node1:http", "expected HOST:PORT"},
                                          {"OURO_RENDEZVOUS", "node1:70000", "expected HOST:PORT"},
                                          {"OURO_RENDEZVOUS", "file:", "expected HOST:PORT"},
                                          {"OURO_SECRET_FILE", "/nowhere/secret", "/nowhere/secret"},
                                          {"OURO_SECRET", "tooshort", "secret"}}) {
    const std::string said = alone({{name, value}});
    EXPECT_NE(said.find(name), said.npos) << name << '=' << value << ": " << said;
    EXPECT_NE(said.find(says), said.npos) << name << '=' << value << ": " << said;
  }
  const std::string fabric = alone({{"OURO_FABRIC", "ucx"}});
  if (const Status ucx = transport::ucx_usable(); ucx.ok()) {
    EXPECT_EQ("joined", fabric);
    EXPECT_NE(alone({{"OURO_FABRIC", "ucx"}, {"OURO_SECURITY", "tls"}}).find("does not encrypt"),
              std::string::npos);
  } else {
    EXPECT_EQ(ucx.reason(), Reason::unsupported);
    EXPECT_EQ(fabric, ucx.message());
    EXPECT_EQ(fabric, alone({{"OURO_FABRIC", "trusted"}}));
    EXPECT_NE(fabric.find("OURO_FABRIC=ucx: "), fabric.npos) << fabric;
    EXPECT_NE(fabric.find("expected tcp"), fabric.npos) << fabric;
  }
  const std::string late = alone({{"OURO_SILENT_WARN", "6"}});
  EXPECT_NE(late.find("OURO_SILENT_WARN=6 and OURO_SILENT_FAIL=5"), late.npos) << late;
  EXPECT_EQ("joined", alone({{"OURO_SILENT_FAIL", "0.8"}}))
      << "the warning was not chosen, and comes earlier";
  for (const char* place : {"node1:7700", "[fd77::1]:7700", "10.0.0.1:7700", "file:/tmp/x"})
    EXPECT_EQ("joined", alone({{"OURO_RENDEZVOUS", place}}));
  EXPECT_EQ("joined", alone({{"OURO_SECRET", "00112233445566778899aabbccddeeff"}, {"OURO_INSECURE", "0"}}));
}

/// There is a device, fake or real.
TEST(Init, OneGpuEachIsRefusedForMoreRanksThanGpus) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  const int gpus = gpu::gpu().devices();
  EXPECT_TRUE(Context::create({.rank = 0, .world_size = 1, .one_gpu_each = true}).ok());
  const Status more =
      Context::create({.rank = 0, .world_size = gpus + 1, .one_gpu_each = true, .address = "x"}).status();
  EXPECT_EQ(more.code(), Code::invalid);
  EXPECT_NE(more.message().find("one_gpu_each"), std::string::npos) << more.message();
}

/// There is no memory for the stacks of so many threads: an error, and the threads that had started
/// have ended.
TEST(Init, TooLittleMemoryForThreadsIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under a sanitizer: it reserves more addresses than the limit of this test";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (256u << 20);
    const rlimit room{limit, limit};
    if (::setrlimit(RLIMIT_AS, &room) != 0) ::_exit(3);
    const Status s = Context::threads(200).status();
    ::_exit(s.reason() == Reason::resource ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

/// A rank that waits for another one, whether it gathers or asks, stops when the program cancels, and the
/// ranks that have joined are told at once.
TEST(TimedInit, JoiningCanBeCancelled) {
  for (const int rank : {0, 1}) {
    auto id = UniqueId::create();
    ASSERT_TRUE(id.ok());
    const auto cancel = std::make_shared<std::atomic<bool>>(false);
    std::vector<Status> ends(2);
    const auto join = [&](int r, bool cancels) {
      InitOptions o;
      o.rank = r, o.world_size = 3, o.id = *id, o.gpu = -1;
      if (cancels) o.cancel = cancel;
      ends[static_cast<std::size_t>(r)] = Context::create(o).status();
    };
    std::thread first(join, rank, true), other(join, 1 - rank, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto begin = std::chrono::steady_clock::now();
    cancel->store(true);
    first.join(), other.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].reason(), Reason::revoked);
    EXPECT_FALSE(ends[static_cast<std::size_t>(1 - rank)].ok());
  }
}

TEST(Init, GroupReportsAnAbortByFailedOnAllRanks) {
  auto contexts = Context::threads(2);
  ASSERT_TRUE(contexts.ok());
  Group &one = (*contexts)[0].world(), &two = (*contexts)[1].world();
  EXPECT_FALSE(one.failed() || two.failed() || Group().failed());
  one.abort("for the test");
  EXPECT_TRUE(one.failed());
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
       !two.failed() && std::chrono::steady_clock::now() < end;)
    std::this_thread::yield();
  EXPECT_TRUE(two.failed());
}

/// Values outside of an enumeration, and options that nothing would read, are refused.
TEST(Init, RefusesOptionsThatMeanNothing) {
  const auto refused = [](const Status& s) { return s.reason() == Reason::invalid; };
  const auto threads = [](auto&& change) {
    InitOptions o;
    change(o);
    return Context::threads(1, o).status();
  };
  EXPECT_TRUE(refused(threads([](InitOptions& o) { o.late_after = std::chrono::milliseconds(-1); })));
  EXPECT_TRUE(refused(threads([](InitOptions& o) { o.numerics = static_cast<Numerics>(7); })));
  EXPECT_TRUE(refused(threads([](InitOptions& o) { o.rank = 0; })));
  EXPECT_TRUE(refused(threads([](InitOptions& o) { o.local_size = 4; })));
  EXPECT_TRUE(refused(threads([](InitOptions& o) { o.id = *UniqueId::create(); })));
  EXPECT_TRUE(refused(Stream::create(static_cast<Priority>(9)).status()));
  EXPECT_TRUE(refused(Stream::create(static_cast<Priority>(-1)).status()));
  auto contexts = Context::threads(1);
  ASSERT_TRUE(contexts.ok());
  Context& c = (*contexts)[0];
  const int all[] = {0};
  EXPECT_TRUE(refused(c.group(all, "late", {.deadline = std::chrono::milliseconds(-5)}).status()));
  EXPECT_TRUE(refused(c.group(all, "odd", {.numerics = static_cast<Numerics>(7)}).status()));
  EXPECT_TRUE(refused(c.world().split(0, 0, {.deadline = std::chrono::milliseconds(-5)}).status()));
  int x = 1, y = 0;
  CallOptions odd;
  odd.numerics = static_cast<Numerics>(7);
  EXPECT_TRUE(
      refused(all_reduce(c.world(), std::span<const int>(&x, 1), std::span<int>(&y, 1), ReduceOp::sum, odd)));
  const auto times = [&](double factor) {
    return all_reduce(c.world(), std::span<const int>(&x, 1), std::span<int>(&y, 1),
                      ReduceOp::premul(factor));
  };
  EXPECT_TRUE(refused(times(0.5)));
  EXPECT_TRUE(refused(times(1e20)));
  EXPECT_TRUE(refused(times(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(times(-3).ok());
  EXPECT_EQ(y, -3);
  EXPECT_TRUE(times(-0x1p63).ok());  // modulo 2^32
  EXPECT_EQ(y, 0);
  std::uint64_t one = 1, product = 0;
  EXPECT_TRUE(all_reduce(c.world(), std::span<const std::uint64_t>(&one, 1),
                         std::span<std::uint64_t>(&product, 1), ReduceOp::premul(0x1p63))
                  .ok());
  EXPECT_EQ(product, std::uint64_t{1} << 63);
  EXPECT_TRUE(c.world().status().ok());
}

/// A receive that requires an exact length reports any other, in the caller and on a stream; the message
/// stays queued.
TEST(Messages, ReceiveOfAnExactLengthRefusesAnyOther) {
  auto contexts = Context::threads(2);
  ASSERT_TRUE(contexts.ok());
  Group &one = (*contexts)[0].world(), &two = (*contexts)[1].world();
  const int data[] = {1, 2, 3};
  int room[4] = {};
  auto stream = Stream::create();
  ASSERT_TRUE(stream.ok());
  for (const bool unexpected : {true, false}) {  // already in the queue, or in flight
    ASSERT_TRUE(send(one, std::span<const int>(data), 1).ok());
    if (unexpected)
      while (!probe(two, 0)->has_value()) std::this_thread::yield();
    for (const std::size_t count : {2, 4}) {
      const View out(room, count, DType::i32);
      const Status s = recv(two, out, 0, 0, RecvOptions{.exact = true}).status();
      EXPECT_EQ(s.reason(), Reason::mismatch);
      EXPECT_NE(s.message().find("12 bytes"), std::string::npos) << s.message();
      auto work = recv(two, out, 0, 0, *stream, RecvOptions{.exact = true});
      ASSERT_TRUE(work.ok());
      EXPECT_EQ(work->wait().reason(), Reason::mismatch);
    }
    EXPECT_TRUE(recv(two, View(room, 3, DType::i32), 0, 0, RecvOptions{.exact = true}).ok());
    EXPECT_EQ(room[2], 3);
  }
}

}  // namespace
}  // namespace ouro
