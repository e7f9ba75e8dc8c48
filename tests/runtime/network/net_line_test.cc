// Listening and dialling: honest ends, and strangers that connect to the port.
#include "runtime/network/net_line.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include <cstring>

#include "runtime/core/log.h"
#include "runtime/network/handshake_session.h"
#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

using testing::HasSubstr;

struct Port {
  explicit Port(asio::io_context& io, Identity self = who(2), LineListener::Options options = {}) {
    if (options.bind.empty()) options.bind = "127.0.0.1";
    auto opened = LineListener::open(io, std::move(self), std::move(options),
                                     [this](Line l) { lines.push_back(std::move(l)); });
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    listener = std::move(*opened);
  }
  std::vector<Line> lines;
  std::unique_ptr<LineListener> listener;
};

/// A TCP server that does not speak the protocol and sends nothing.
struct Listening {
  Listening() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    NetAddress at = *parse_address("127.0.0.1:0");
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&at.at), at.length), 0);
    EXPECT_EQ(listen(socket.get(), 8), 0);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at.at), &at.length);
    endpoint = to_string(at);
  }
  Fd accept() const { return Fd(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  Fd socket;
  std::string endpoint;
};

/// A TCP client that does not speak the protocol.
Fd stranger(const std::string& endpoint, std::string_view says = {}) {
  const auto to = parse_address(endpoint);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to->at), to->length), 0)
      << std::strerror(errno);
  if (!says.empty()) (void)!::send(fd.get(), says.data(), says.size(), MSG_NOSIGNAL);
  return fd;
}
bool hung_up(const Fd& fd) {
  char c[4096];
  for (;;) {
    const ssize_t n = ::recv(fd.get(), c, sizeof c, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return true;
    if (n < 0) return false;
  }
}
Result<Line> dialled(asio::io_context& io, const std::string& endpoint, Identity self = who(1), int to = 2,
                     std::chrono::milliseconds limit = test::kHang, Purpose purpose = Purpose::data) {
  std::optional<Result<Line>> result;
  dial(io, endpoint, purpose, std::move(self), to, Clock::now() + limit,
       [&](Result<Line> r) { result = std::move(r); });
  EXPECT_FALSE(result) << "never from inside the call";
  EXPECT_TRUE(run_until(io, [&] { return result.has_value(); }));
  return result ? std::move(*result) : Result<Line>(invalid("no answer"));
}

TEST(NetLine, RanksConnectAndDataAfterTheHandshakeStaysUnread) {
  asio::io_context io;
  Port port(io);
  auto line = dialled(io, port.listener->endpoint());
  ASSERT_TRUE(line.ok()) << line.status().message();
  ASSERT_TRUE(::send(line->socket.get(), "beyond", 6, 0) == 6);
  ASSERT_TRUE(run_until(io, [&] { return port.lines.size() == 1; }));
  Line& theirs = port.lines[0];
  EXPECT_EQ(theirs.peer_rank, 1);
  EXPECT_EQ(theirs.peer_host, "node1");
  EXPECT_EQ(theirs.peer_pid, 1001);
  EXPECT_EQ(theirs.purpose, Purpose::data);
  EXPECT_EQ(line->peer_rank, 2);
  EXPECT_EQ(line->peer_address, port.listener->endpoint());
  EXPECT_EQ(theirs.keys.in, line->keys.out);
  EXPECT_EQ(theirs.keys.out, line->keys.in);
  for (const Fd* fd : {&line->socket, &theirs.socket}) {
    int on = 0;
    socklen_t length = sizeof on;
    getsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, &length);
    EXPECT_TRUE(on);
    EXPECT_TRUE(fcntl(fd->get(), F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(watch_link(fd->get()).ok());
    getsockopt(fd->get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &on, &length);
    EXPECT_GE(on, 3000);
    EXPECT_LT(on, 3100);
  }
  char bytes[16] = {};
  pollfd p{theirs.socket.get(), POLLIN, 0};
  poll(&p, 1, 1000);
  EXPECT_EQ(::recv(theirs.socket.get(), bytes, sizeof bytes, 0), 6);
  EXPECT_STREQ(bytes, "beyond");
}

TEST(NetLine, RanksConnectOverIpv6) {
  asio::io_context io;
  auto listener = LineListener::open(io, who(2), {.bind = "[::1]:0"}, [](Line) {});
  if (!listener.ok()) GTEST_SKIP() << "this system has no IPv6: " << listener.status().message();
  EXPECT_THAT((*listener)->endpoint(), testing::StartsWith("[::1]:"));
  EXPECT_TRUE(dialled(io, (*listener)->endpoint()).ok());
}

TEST(NetLine, BadAddressesAreRefused) {
  asio::io_context io;
  for (const char* bind : {"0.0.0.0", "[::]:0", "localhost", ""})
    EXPECT_EQ(LineListener::open(io, who(2), {.bind = bind}, [](Line) {}).status().reason(), Reason::invalid)
        << bind;
  EXPECT_EQ(LineListener::open(io, who(2), {.bind = "192.0.2.1"}, [](Line) {}).status().reason(),
            Reason::resource);
  Port port(io);
  EXPECT_EQ(
      LineListener::open(io, who(2), {.bind = port.listener->endpoint()}, [](Line) {}).status().reason(),
      Reason::resource);
  EXPECT_EQ(dialled(io, "nowhere:1").status().reason(), Reason::invalid);
}

TEST(NetLine, RefusedConnectionMeansDeathAndSilenceDoesNot) {
  asio::io_context io;
  std::string endpoint;
  {
    Port port(io);
    endpoint = port.listener->endpoint();
  }
  const Status dead = dialled(io, endpoint).status();
  EXPECT_EQ(dead.reason(), Reason::peer_dead);
  EXPECT_EQ(dead.failure()->detector, "connection refused");
  const Listening mute;  // the kernel accepts, but nothing is sent, as by a stopped process
  const auto start = Clock::now();
  const Status silent = dialled(io, mute.endpoint, who(1), 2, 200ms).status();
  EXPECT_EQ(silent.reason(), Reason::peer_unresponsive);
  EXPECT_EQ(silent.failure()->detector, "no answer");
  EXPECT_LT(Clock::now() - start, test::kHang);
}

TEST(NetLine, RefusalsReachTheDialler) {
  asio::io_context io;
  Port port(io);
  const auto refused = [&](Identity self, int to, const char* word) {
    const auto start = Clock::now();
    const Status s = dialled(io, port.listener->endpoint(), std::move(self), to).status();
    EXPECT_EQ(s.reason(), Reason::refused) << s.message();
    EXPECT_THAT(s.message(), HasSubstr(word));
    EXPECT_LT(Clock::now() - start, test::kHang);
  };
  Identity other = who(1);
  other.secret = secret(7);
  refused(other, 2, "bad-mac");
  other = who(1);
  other.job[3] = 9;
  refused(other, 2, "wrong-job");
  EXPECT_THAT(log::last_warning(), HasSubstr("127.0.0.1")) << "and logged at the listener";
  refused(who(1), 3, "found rank 2");
  Identity survivor = who(1);
  survivor.generation = 1;
  refused(survivor, 2, "generation 0");
}

TEST(NetLine, ForeignListenersAreDistinguishedFromWrongSecrets) {
  asio::io_context io;
  Port port(io);
  Identity other = who(1);
  other.job[3] = 9;
  EXPECT_EQ(dialled(io, port.listener->endpoint(), other).status().failure()->detector, wire::kForeign);
  other = who(1);
  other.secret = secret(7);
  EXPECT_NE(dialled(io, port.listener->endpoint(), other).status().failure()->detector, wire::kForeign);
  Listening program;
  std::optional<Result<Line>> line;
  dial(io, program.endpoint, Purpose::data, who(1), 2, Clock::now() + 3s,
       [&](Result<Line> r) { line = std::move(r); });
  const Fd answering = program.accept();
  ASSERT_EQ(::send(answering.get(), "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL), 11);
  ASSERT_TRUE(run_until(io, [&] { return line.has_value(); }));
  EXPECT_EQ(line->status().reason(), Reason::refused);
  EXPECT_EQ(line->status().failure()->detector, wire::kForeign);
}

TEST(NetLine, DialAttemptEndsWithItsIoContext) {
  const auto token = std::make_shared<int>(0);
  Listening mute;
  {
    asio::io_context io;
    dial(io, mute.endpoint, Purpose::data, who(1), 2, Clock::now() + 10s, [token](const Result<Line>&) {});
    EXPECT_FALSE(run_until(
        io, [] { return false; }, 50ms));  // it has connected, and waits for the first frame
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1) << "nothing keeps it alive";
}

TEST(NetLine, GarbageIsRefusedAtOnceAndLoggedOnce) {
  asio::io_context io;
  Port port(io);
  std::vector<Fd> strangers;
  for (const char* text :
       {"GET / HTTP/1.1\r\n\r\n and more than a header", "SSH-2.0-x\r\n", "\r\n", "\x16\x03\x01"})
    strangers.push_back(stranger(port.listener->endpoint(), text));
  EXPECT_TRUE(run_until(io, [&] { return port.listener->counts().refused == 4; }));
  EXPECT_EQ(port.listener->counts().silent, 0u) << "not only when their time was over";
  EXPECT_TRUE(std::all_of(strangers.begin(), strangers.end(), hung_up));
  EXPECT_EQ(port.listener->counts().half_open, 0u);
}

TEST(NetLine, SilentAndSlowConnectionsAreClosedInTime) {
  asio::io_context io;
  LineListener::Options options;
  options.bind = "127.0.0.1";
  options.first_frame = 100ms, options.handshake = 2s;
  Port port(io, who(2), std::move(options));
  const Fd silent = stranger(port.listener->endpoint());
  const Fd slow = stranger(port.listener->endpoint(), std::string_view("OURO\x01", 5));
  EXPECT_TRUE(run_until(io, [&] { return hung_up(silent); }));
  EXPECT_FALSE(hung_up(slow));
  EXPECT_EQ(port.listener->counts().silent, 1u);
  EXPECT_TRUE(run_until(io, [&] { return hung_up(slow); }));
  EXPECT_EQ(port.listener->counts().half_open, 0u);
}

TEST(NetLine, SilentConnectionsAreBoundedAndBlockNoRank) {
  asio::io_context io;
  Port port(io);
  std::vector<Fd> crowd;
  std::size_t most = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 40; ++i) crowd.push_back(stranger(port.listener->endpoint()));
    const auto start = Clock::now();
    const auto line = dialled(io, port.listener->endpoint());
    EXPECT_TRUE(line.ok() || line.status().failure()->detector == "busy") << line.status().message();
    EXPECT_LT(Clock::now() - start, test::kHang);
    most = std::max(most, port.listener->counts().half_open);
  }
  EXPECT_LE(most, 16u);
  EXPECT_GT(port.listener->counts().evicted, 100u);
  EXPECT_GE(port.lines.size(), 8u);
}

TEST(NetLine, OutOfDescriptorsItShedsConnectionsAndPauses) {
  asio::io_context io;
  Port port(io);
  const Fd first = stranger(port.listener->endpoint(), "x");
  ASSERT_TRUE(run_until(io, [&] { return port.listener->counts().refused == 1; }));
  std::vector<Fd> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(stranger(port.listener->endpoint()));
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(clients.back().get()) + 1;  // no further descriptor
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Fd> holes;
  for (int fd = 0; fd < 64; ++fd)  // fill the gaps below the limit
    if (Fd hole(fcntl(0, F_DUPFD_CLOEXEC, 0)); hole) holes.push_back(std::move(hole));
  int polls = 0;
  const auto end = Clock::now() + 300ms;
  while (Clock::now() < end) {
    io.restart();
    polls += static_cast<int>(io.run_one_for(10ms));
  }
  EXPECT_GE(port.listener->counts().shed, 1u);
  EXPECT_LT(polls, 100) << "no busy loop";
  setrlimit(RLIMIT_NOFILE, &old);
  holes.clear();
  EXPECT_TRUE(run_until(io, [&] { return port.listener->counts().accepted > 1; }));
  clients.clear();
  EXPECT_TRUE(dialled(io, port.listener->endpoint()).ok()) << "and serves on";
}

TEST(NetLine, DestroyedListenerClosesItsConnections) {
  asio::io_context io;
  std::optional<Port> port(std::in_place, io);
  const Fd waiting = stranger(port->listener->endpoint());
  ASSERT_TRUE(run_until(io, [&] { return port->listener->counts().half_open == 1; }));
  port.reset();
  EXPECT_TRUE(run_until(io, [&] { return hung_up(waiting); }));
}

TEST(JobSecret, IsRequiredUnlessInsecure) {
  const auto with = [](const char* secret, const char* insecure) {
    secret ? setenv("OURO_SECRET", secret, 1) : unsetenv("OURO_SECRET");
    insecure ? setenv("OURO_INSECURE", insecure, 1) : unsetenv("OURO_INSECURE");
    return job_secret();
  };
  EXPECT_EQ(with(nullptr, nullptr).status().reason(), Reason::invalid);
  EXPECT_THAT(with(nullptr, "0").status().message(), HasSubstr("OURO_SECRET_FILE"));
  auto none = with(nullptr, "1");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  EXPECT_THAT(log::last_warning(), HasSubstr("OURO_INSECURE"));
  auto given = with("000102030405060708090a0b0c0d0e0f", "1");
  ASSERT_TRUE(given.ok());
  EXPECT_TRUE(*given);
  EXPECT_THAT(log::last_warning(), testing::Not(HasSubstr("0001020304"))) << "never printed";
  EXPECT_EQ(with("0011", nullptr).status().reason(), Reason::invalid);
  with(nullptr, nullptr).ok();
}

}  // namespace
}  // namespace ouro::rt
