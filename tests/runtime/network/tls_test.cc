// Lines under TLS: the data on the wire, tampering and strangers, odd sizes and sockets with small buffers,
// and whole jobs.
#include "transport/net/pipe.h"

#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/network/network.h"
#include "tests/runtime/group/ranks.h"
#include "tests/runtime/network/lab.h"
#include "tests/runtime/network/pipe_ends.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
Pipe pipe_of(const Fd& socket, std::optional<TlsEnd> end) {
  auto p = Pipe::open(socket.get(), end);
  EXPECT_TRUE(p.ok());
  return std::move(*p);
}
/// The result of moving data from one pipe to the other, with both driven alternately by this thread.
struct Transfer {
  Status sender, receiver;
  Bytes arrived;
  bool waited_for_room = false;
};
Transfer transfer(Pipe& from, Pipe& to, const Bytes& what, std::size_t piece = SIZE_MAX,
                  std::size_t head = 0) {
  Transfer t;
  std::size_t written = 0;
  Bytes room(1 << 16);
  const auto until = Clock::now() + 20s;
  while (t.arrived.size() < what.size() && t.sender.ok() && t.receiver.ok() && Clock::now() < until) {
    t.sender = from.flush();
    for (bool more = true; more && t.sender.ok() && written < what.size();) {
      const std::size_t n = std::min(piece, what.size() - written), first = std::min(head, n);
      auto* at = const_cast<std::byte*>(what.data()) + written;
      const std::array<iovec, 2> parts{{{at, first}, {at + first, n - first}}};
      const auto w = from.write(parts);
      t.sender = w.status();
      more = w.ok() && *w > 0;
      if (more) written += *w;
    }
    t.waited_for_room |= from.blocked();
    const std::array<iovec, 2> into{{{room.data(), 1000}, {room.data() + 1000, room.size() - 1000}}};
    const auto r = to.read(into);
    if (r.ok())
      t.arrived.insert(t.arrived.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(*r));
    t.receiver = r.status();
    if (auto back = from.read(into); !back.ok()) t.sender = back.status();  // the handshake's answers
  }
  return t;
}

/// Relays data from one socket to another.
struct Tap {
  std::function<void(Bytes&)> change = [](Bytes&) {};
  Bytes seen;
  void pass(const Fd& from, const Fd& to) {
    Bytes some(1 << 16);
    const ssize_t n = ::recv(from.get(), some.data(), some.size(), 0);
    if (n <= 0) return;
    some.resize(static_cast<std::size_t>(n));
    change(some);
    seen.insert(seen.end(), some.begin(), some.end());
    for (std::size_t at = 0; at < some.size();) {
      const ssize_t put = ::send(to.get(), some.data() + at, some.size() - at, MSG_NOSIGNAL);
      if (put > 0) at += static_cast<std::size_t>(put);
      if (put < 0 && errno != EAGAIN) return;
    }
  }
};
/// Two pipes with a man in the middle.
struct Path {
  explicit Path(std::optional<TlsEnd> client, std::optional<TlsEnd> server)
      : a(pipe_of(left.a, client)), b(pipe_of(right.b, server)) {}
  Sockets left, right;
  Pipe a, b;
  Tap up, down;
  /// Sends a text from a to b. Returns what arrived, or the error.
  std::string say(const std::string& text, std::chrono::milliseconds limit = 5s) {
    const iovec out{const_cast<char*>(text.data()), text.size()};
    bool said = false;
    std::string heard(text.size() + 100, 0);
    const iovec in{heard.data(), heard.size()};
    for (const auto until = Clock::now() + limit; Clock::now() < until;) {
      if (!said) {
        const auto n = a.write({&out, 1});
        if (!n.ok()) return "sender: " + n.status().failure()->text;
        said = *n == text.size();
      }
      up.pass(left.b, right.a);
      if (const auto n = b.read({&in, 1}); !n.ok())
        return "receiver: " + n.status().failure()->text;
      else if (*n > 0)
        return heard.substr(0, *n);
      down.pass(right.a, left.b);
      if (Status s = a.read({&in, 1}).status(); !s.ok()) return "sender: " + s.failure()->text;
    }
    return "nothing";
  }
};
bool holds(const Bytes& where, std::string_view what) {
  const auto* at = reinterpret_cast<const char*>(where.data());
  return std::string_view(at, where.size()).find(what) != std::string_view::npos;
}
const std::string kPattern(300, 'p');

TEST(Tls, PlaintextIsNeverOnTheWire) {
  Path plain({}, {}), hidden(end_of(Role::client), end_of(Role::server));
  EXPECT_EQ(plain.say(kPattern), kPattern);
  EXPECT_TRUE(holds(plain.up.seen, kPattern.substr(0, 8))) << "or this test would see nothing";
  EXPECT_EQ(hidden.say(kPattern), kPattern);
  EXPECT_GT(hidden.up.seen.size(), kPattern.size());
  EXPECT_FALSE(holds(hidden.up.seen, kPattern.substr(0, 8)));
}

TEST(Tls, ATamperedRecordEndsTheConnectionAtBothEnds) {
  Path p(end_of(Role::client), end_of(Role::server));
  ASSERT_EQ(p.say("good"), "good");
  p.up.change = [](Bytes& b) { b.back() ^= std::byte{1}; };
  EXPECT_THAT(p.say("bad"), testing::AllOf(HasSubstr("receiver: TLS"), HasSubstr("bad record mac")));
  p.up.change = [](Bytes&) {};
  EXPECT_THAT(p.say("more"), HasSubstr("receiver: TLS")) << "and it stays so";
  p.down.pass(p.right.a, p.left.b);
  char c;
  const iovec in{&c, 1};
  EXPECT_THAT(p.a.read({&in, 1}).status().message(), HasSubstr("alert bad record mac"));
}

TEST(Tls, ReplayedOrLostRecordEndsTheConnection) {
  Path replay(end_of(Role::client), end_of(Role::server)), loss(end_of(Role::client), end_of(Role::server));
  ASSERT_EQ(replay.say("one"), "one");
  ASSERT_EQ(loss.say("one"), "one");
  Bytes kept;
  replay.up.change = [&](Bytes& b) { kept = b; };
  ASSERT_EQ(replay.say("two"), "two");
  replay.up.change = [&](Bytes& b) { b = kept; };
  EXPECT_THAT(replay.say("three"), HasSubstr("receiver: TLS"));
  loss.up.change = [](Bytes& b) { b.clear(); };
  loss.say("two", 50ms);
  loss.up.change = [](Bytes&) {};
  EXPECT_THAT(loss.say("three"), HasSubstr("receiver: TLS"));
}

TEST(Tls, AnotherKeyIsRefused) {
  Path p(end_of(Role::client, 1), end_of(Role::server, 2));
  EXPECT_THAT(p.say("secret"), HasSubstr("TLS")) << "the server cannot verify the binder";
  Path swapped(end_of(Role::client), end_of(Role::client));
  EXPECT_THAT(swapped.say("secret"), HasSubstr("TLS"));
  Path bare(end_of(Role::client), {});
  EXPECT_THAT(bare.say("secret", 200ms), testing::Not(HasSubstr("secret")));
}

/// A server with a self-signed certificate that does not know the key.
TEST(Tls, ACertificateInsteadOfTheKeyIsRefused) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  X509_set_version(cert, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), 0);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
  X509_set_pubkey(cert, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("ouro"), -1, -1, 0);
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  ASSERT_GT(X509_sign(cert, key, EVP_sha256()), 0);
  SSL_CTX* ctx = SSL_CTX_new(TLS_server_method());
  ASSERT_EQ(SSL_CTX_use_certificate(ctx, cert), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(ctx, key), 1);
  SSL* stranger = SSL_new(ctx);
  Sockets s;
  SSL_set_fd(stranger, s.b.get());
  SSL_set_accept_state(stranger);
  Pipe client = pipe_of(s.a, end_of(Role::client));
  Status said = client.flush();
  char c;
  const iovec in{&c, 1};
  for (const auto until = Clock::now() + 5s; said.ok() && Clock::now() < until;) {
    SSL_do_handshake(stranger);
    said = client.read({&in, 1}).status();
  }
  EXPECT_THAT(said.message(), HasSubstr("certificate verify failed"));
  EXPECT_FALSE(client.ready());
  SSL_free(stranger);
  SSL_CTX_free(ctx);
  X509_free(cert);
  EVP_PKEY_free(key);
}

class PlainAndTlsPipes : public testing::TestWithParam<bool> {
 protected:
  static std::optional<TlsEnd> end(Role role) {
    return GetParam() ? std::optional(end_of(role)) : std::nullopt;
  }
};
INSTANTIATE_TEST_SUITE_P(Pipe, PlainAndTlsPipes, testing::Bool(),
                         [](const auto& p) { return p.param ? "tls" : "plain"; });

TEST_P(PlainAndTlsPipes, TransferAllSizesBothWays) {
  Sockets s;
  Pipe a = pipe_of(s.a, end(Role::client)), b = pipe_of(s.b, end(Role::server));
  std::vector<std::size_t> sizes;
  for (std::size_t n = 1; n <= 300; ++n) sizes.push_back(n);
  for (const std::size_t at : {16384u, 32768u, 131072u, 1048576u})
    for (std::size_t n = at - 80; n <= at + 80; n += 8) sizes.push_back(n + 1);
  for (const std::size_t n : sizes) {
    const Bytes what = noise(n, n);
    const Transfer up = transfer(a, b, what, SIZE_MAX, 72), down = transfer(b, a, what, 5000, n % 100);
    ASSERT_TRUE(up.arrived == what && down.arrived == what) << n << " bytes: " << up.sender.message();
  }
}

TEST_P(PlainAndTlsPipes, TransferThroughSmallSocketBuffers) {
  Sockets s(4096);
  Pipe a = pipe_of(s.a, end(Role::client)), b = pipe_of(s.b, end(Role::server));
  const Bytes what = noise(3'000'000, 7);
  const Transfer t = transfer(a, b, what, SIZE_MAX, 72);
  EXPECT_TRUE(t.arrived == what) << t.sender.message() << t.receiver.message();
  EXPECT_TRUE(t.waited_for_room);
}

TEST_P(PlainAndTlsPipes, ReportTheEndOfTheConnectionWithoutASignal) {
  Sockets s;
  Pipe a = pipe_of(s.a, end(Role::client)), b = pipe_of(s.b, end(Role::server));
  ASSERT_EQ(transfer(a, b, noise(100, 1)).arrived.size(), 100u);
  s.b.reset();
  Bytes room(100);
  const iovec in{room.data(), room.size()};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(a.read({&in, 1}).status().reason(), Reason::link_lost);
  EXPECT_EQ(a.write({&in, 1}).status().reason(), Reason::link_lost) << "and no SIGPIPE";
}

TEST(Tls, KeysAreRenewed) {
  Sockets s;
  TlsEnd client = end_of(Role::client), server = end_of(Role::server);
  client.records_per_key = server.records_per_key = 3;
  Pipe a = pipe_of(s.a, client), b = pipe_of(s.b, server);
  const Bytes what = noise(1'000'000, 9);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(transfer(a, b, what).arrived == what);
    EXPECT_TRUE(transfer(b, a, what).arrived == what);
  }
}

/// Before a thread sleeps on the socket, it must read the data that the pipe has buffered; reading buffered
/// data does not touch the socket.
TEST(Tls, BufferedDataIsReadWithoutTheSocket) {
  Sockets s;
  Pipe a = pipe_of(s.a, end_of(Role::client)), b = pipe_of(s.b, end_of(Role::server));
  ASSERT_EQ(transfer(a, b, noise(1, 1)).arrived.size(), 1u);
  const Bytes what = noise(40'000, 2);
  const iovec out{const_cast<std::byte*>(what.data()), what.size()};
  ASSERT_EQ(*a.write({&out, 1}), what.size());
  Bytes got(what.size() + 100);
  const iovec little{got.data(), 10};
  ASSERT_EQ(*b.read({&little, 1}), 10u);
  pollfd p{s.b.get(), POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 0), 0) << "the socket tells nothing of what was read ahead";
  ASSERT_EQ(*a.write({&out, 1}), what.size());
  const iovec rest{got.data() + 10, got.size() - 10};
  EXPECT_EQ(*b.read({&rest, 1}, Pipe::From::kept), what.size() - 10);
  EXPECT_EQ(*b.read({&rest, 1}, Pipe::From::kept), 0u);
  EXPECT_TRUE(std::equal(what.begin(), what.end(), got.begin()));
  EXPECT_EQ(poll(&p, 1, 0), 1) << "what came later is still there";
}

/// The last handshake message and the data after it arrive together. A write in between must not take them
/// from the socket; otherwise a thread that sleeps on the socket would not wake until more data arrives,
/// if ever.
TEST(Tls, WritingLeavesArrivedDataInTheSocket) {
  Sockets s;
  Pipe a = pipe_of(s.a, end_of(Role::client)), b = pipe_of(s.b, end_of(Role::server));
  Bytes text = noise(100, 3), room(1000);
  const iovec out{text.data(), text.size()}, in{room.data(), room.size()};
  ASSERT_EQ(*a.write({&out, 1}), 0u) << "the server has to answer first";
  ASSERT_EQ(*b.read({&in, 1}), 0u);
  ASSERT_EQ(*a.read({&in, 1}), 0u);
  ASSERT_EQ(*a.write({&out, 1}), text.size());
  ASSERT_TRUE(b.write({&out, 1}).ok());
  pollfd p{s.b.get(), POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 0), 1);
  EXPECT_EQ(*b.read({&in, 1}), text.size());
}

/// Sets the environment of a job over simulated hosts, and restores it at the end.
class Jobs : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, value] : {std::pair{"OURO_SECURITY", "tls"},
                                      {"OURO_SOCKET_IFNAME", "lo"},
                                      {"TEST_HOSTS", "2"},
                                      {"OURO_SECRET", "000102030405060708090a0b0c0d0e0f"}})
      set(name, value);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }
  void set(const char* name, const char* value) {
    const char* const old = std::getenv(name);
    before_.emplace_back(name, old ? std::optional<std::string>(old) : std::nullopt);
    value ? setenv(name, value, 1) : unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(Jobs, RanksOfTwoHostsReduceExactly) {
  const std::string said = test::run_threads(4, [](Context& c) -> std::string {
    for (const std::size_t n : {1ul, 1000ul, 300'000ul}) {
      std::vector<float> in(n, static_cast<float>(c.rank() + 1)), out(n);
      if (Status s = all_reduce(c.world(), std::span<const float>(in), std::span<float>(out)); !s.ok())
        return s.message();
      if (std::count(out.begin(), out.end(), 10.0f) != static_cast<std::ptrdiff_t>(n)) return "a wrong sum";
    }
    return "";
  });
  EXPECT_EQ(said, "");
}

TEST_F(Jobs, TheLogOfEverythingHoldsNoSecret) {
  const std::string file = fmt::format("{}ouro-log-{}", testing::TempDir(), getpid());
  set("OURO_DEBUG", "TRACE"), set("OURO_DEBUG_SUBSYS", "ALL"), set("OURO_DEBUG_FILE", file.c_str());
  log::reload();
  env::report();
  EXPECT_EQ(test::run_threads(2, [](Context& c) { return barrier(c.world()).ok() ? "" : "no barrier"; }), "");
  for (const char* name : {"OURO_DEBUG", "OURO_DEBUG_SUBSYS", "OURO_DEBUG_FILE"}) set(name, nullptr);
  log::reload();
  std::ifstream in(file);
  const std::string all{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(all, HasSubstr("listens on")) << "what was said while joining";
  EXPECT_THAT(all, testing::Not(HasSubstr("0405060708090a0b")));
  std::remove(file.c_str());
}

TEST_F(Jobs, SecretOfTheJobIdIsEnough) {
  set("OURO_SECRET", nullptr);
  EXPECT_EQ(test::run_threads(2, [](Context&) { return std::string(); }), "");
}

TEST_F(Jobs, TlsWithoutASecretIsRefused) {
  set("OURO_SECRET", nullptr);
  set("OURO_INSECURE", "1");
  InitOptions o = test::quick_options();
  o.id = *UniqueId::create();
  constexpr std::size_t kNamed = 24;  // bytes of an id before its secret, which the ids of launchers lack
  std::fill(o.id->bytes + kNamed, std::end(o.id->bytes), std::uint8_t{0});
  const std::string said = test::run_threads(
      2, [](Context&) { return std::string(); }, o);
  EXPECT_THAT(said, testing::AllOf(HasSubstr("OURO_SECURITY=tls"), HasSubstr("OURO_SECRET_FILE")));
}

TEST_F(Jobs, AFabricThatDoesNotEncryptIsRefused) {
  set("OURO_FABRIC", "ucx");
  const std::string said = test::run_threads(2, [](Context&) { return std::string(); });
  EXPECT_THAT(said, HasSubstr("unsupported"));
  if (said.find("this build has no UCX") != said.npos) GTEST_SKIP() << "no UCX in this build";
  EXPECT_THAT(said, HasSubstr("does not encrypt"));
}

}  // namespace
}  // namespace ouro::transport
