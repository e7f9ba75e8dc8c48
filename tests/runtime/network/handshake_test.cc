// The handshake: what two honest ends agree on, and all kinds of invalid input.
#include "transport/wire/handshake.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/network/lab.h"
#include "transport/wire/codec.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::wire {
namespace {

using rt::secret, rt::who;
using testing::HasSubstr;
using Phase = Handshake::Phase;

/// Options with reproducible random bytes.
HandshakeOptions seeded(std::uint8_t seed) {
  HandshakeOptions o;
  o.random = [seed](std::span<std::uint8_t> to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::uint8_t>(seed + i);
    return Status();
  };
  return o;
}

struct Outcome {
  Handshake::Step server, client;  // the last step of each end
  Bytes wire;                      // all bytes sent
};

/// Carries bytes between the two ends in pieces of at most `piece`, until both are done.
Outcome talk(Handshake& server, Handshake& client, std::size_t piece = 1000) {
  Outcome o;
  Bytes up, down;
  const auto feed = [&](Handshake& to, Handshake::Step& last, Bytes& in, Bytes& out) {
    while (!in.empty() && !to.over()) {
      const std::size_t n = std::min({piece, in.size(), to.wants()});
      last = to.step({in.data(), n});
      in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(n));
      out.insert(out.end(), last.out.begin(), last.out.end());
      o.wire.insert(o.wire.end(), last.out.begin(), last.out.end());
    }
  };
  o.server = server.step({});
  down = o.wire = o.server.out;
  for (int i = 0; i < 4; ++i) feed(client, o.client, down, up), feed(server, o.server, up, down);
  return o;
}

TEST(HandshakeTest, BothEndsAgree) {
  for (const std::size_t piece : {1, 7, 24, 1000}) {
    auto server = Handshake::server(who(2)), client = Handshake::client(who(1), Purpose::data, 2);
    const Outcome o = talk(server, client, piece);
    ASSERT_EQ(o.server.phase, Phase::done) << o.server.why.message();
    ASSERT_EQ(o.client.phase, Phase::done) << o.client.why.message();
    EXPECT_EQ(server.peer().rank, 1);
    EXPECT_EQ(server.peer().host, "node1");
    EXPECT_EQ(server.peer().host_id, "id1");
    EXPECT_EQ(server.peer().pid, 1001);
    EXPECT_EQ(server.peer().purpose, Purpose::data);
    EXPECT_EQ(client.peer().rank, 2);
    EXPECT_EQ(client.peer().world, 4);
    EXPECT_EQ(server.peer().keys.in, client.peer().keys.out);
    EXPECT_EQ(server.peer().keys.out, client.peer().keys.in);
    EXPECT_NE(server.peer().keys.out, server.peer().keys.in);
    EXPECT_EQ(server.wants(), 0u);
    EXPECT_EQ(client.wants(), 0u);
  }
}

/// Golden: the same nonces give the same bytes and keys; other nonces, purposes or ranks give other keys.
TEST(HandshakeTest, KeysDependOnTheWholeTranscript) {
  const auto keys = [](Identity c, Purpose p, std::uint8_t seed) {
    auto server = Handshake::server(who(2), seeded(seed)), client = Handshake::client(c, p, 2, seeded(9));
    EXPECT_EQ(talk(server, client).client.phase, Phase::done);
    return client.peer().keys.out;
  };
  const Key first = keys(who(1), Purpose::data, 5);
  EXPECT_EQ(first, keys(who(1), Purpose::data, 5));
  EXPECT_NE(first, keys(who(1), Purpose::data, 6));
  EXPECT_NE(first, keys(who(3), Purpose::data, 5));
  EXPECT_NE(first, keys(who(1), Purpose::control, 5));
}

TEST(HandshakeTest, SucceedsWithoutASecretOnBothSides) {
  Identity a = who(0), b = who(1);
  a.secret = b.secret = {};
  auto server = Handshake::server(a), client = Handshake::client(b, Purpose::join, 0);
  EXPECT_EQ(talk(server, client).client.phase, Phase::done);
  EXPECT_EQ(server.peer().keys.in, client.peer().keys.out);
}

TEST(HandshakeTest, RefusalsReachBothEnds) {
  struct Case {
    const char* what;
    std::function<void(Identity& server, Identity& client)> change;
    RefuseCode code;
    std::vector<const char*> words;  // on both sides
  };
  const Case cases[] = {
      {"job", [](auto&, auto& c) { c.job[0] ^= 1; }, RefuseCode::wrong_job, {"wrong-job", "0002", "0102"}},
      {"generation", [](auto&, auto& c) { c.generation = 3; }, RefuseCode::wrong_job, {"generation 0", "3"}},
      {"secret", [](auto&, auto& c) { c.secret = secret(2); }, RefuseCode::bad_mac, {"bad-mac", "differ"}},
      {"no secret", [](auto&, auto& c) { c.secret = {}; }, RefuseCode::bad_mac, {"server has a secret"}},
      {"only one secret",
       [](auto& s, auto&) { s.secret = {}; },
       RefuseCode::bad_mac,
       {"client has a secret"}},
      {"another rank",
       [](auto& s, auto&) { s.rank = 3; },
       RefuseCode::rank_range,
       {"looks for rank 2", "rank 3"}},
      {"itself",
       [](auto&, auto& c) { c.rank = 2; },
       RefuseCode::duplicate_rank,
       {"duplicate-rank", "rank 2"}},
      {"world", [](auto&, auto& c) { c.world = 5; }, RefuseCode::config, {"config", "says 5", "says 4"}},
      {"rank range", [](auto&, auto& c) { c.rank = 4; }, RefuseCode::rank_range, {"rank 4 of 4"}},
  };
  for (const Case& c : cases) {
    Identity s = who(2), k = who(1);
    c.change(s, k);
    auto server = Handshake::server(s), client = Handshake::client(k, Purpose::data, 2);
    const Outcome o = talk(server, client);
    EXPECT_EQ(o.server.phase, Phase::refused) << c.what;
    EXPECT_EQ(o.client.phase, Phase::refused) << c.what;
    EXPECT_EQ(o.server.code, c.code) << c.what;
    EXPECT_EQ(o.client.code, c.code) << c.what;
    for (const char* word : c.words) {
      EXPECT_THAT(o.server.why.message(), HasSubstr(word)) << c.what;
      EXPECT_THAT(o.client.why.message(), HasSubstr(word)) << c.what;
    }
  }
}

/// Admission judges joining ranks, since it can name both sides.
TEST(HandshakeTest, JoiningLeavesWorldAndRankToAdmission) {
  auto server = Handshake::server(who(0)), client = Handshake::client(who(0, 9), Purpose::join, 0);
  EXPECT_EQ(talk(server, client).server.phase, Phase::done);
  EXPECT_EQ(server.peer().world, 9);
}

TEST(HandshakeTest, VersionsAreNegotiated) {
  const auto versions = [](std::vector<Version> v) {
    HandshakeOptions o;
    o.versions = std::move(v);
    return o;
  };
  const auto outcome = [&](std::vector<Version> s, std::vector<Version> c, Version* spoken) {
    auto server = Handshake::server(who(2), versions(s)),
         client = Handshake::client(who(1), Purpose::data, 2, versions(c));
    Outcome o = talk(server, client);
    *spoken = client.peer().version;
    return o;
  };
  Version v = 0;
  EXPECT_EQ(outcome({0x100, 0x203}, {0x201, 0x100}, &v).client.phase, Phase::done);
  EXPECT_EQ(v, 0x201) << "the highest major, the lower minor";
  EXPECT_EQ(outcome({0x105}, {0x100}, &v).client.phase, Phase::done);
  EXPECT_EQ(v, 0x100);
  const Outcome o = outcome({0x200}, {0x100}, &v);
  for (const auto* end : {&o.server, &o.client}) {
    EXPECT_EQ(end->code, RefuseCode::bad_version);
    EXPECT_THAT(end->why.message(), testing::AllOf(HasSubstr("2.0"), HasSubstr("1.0")));
  }
}

TEST(HandshakeTest, AReplayedProofIsRefused) {
  auto server = Handshake::server(who(2)), client = Handshake::client(who(1), Purpose::data, 2);
  const Bytes hello = server.step({}).out;
  const auto step = [](Handshake& h, const Bytes& in) {
    Handshake::Step last;
    for (std::size_t at = 0; at < in.size() && !h.over();) {
      const std::size_t n = std::min(h.wants(), in.size() - at);
      last = h.step({in.data() + at, n});
      at += n;
    }
    return last;
  };
  const Bytes prove = step(client, hello).out;
  EXPECT_EQ(step(server, prove).phase, Phase::done);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {  // each with a new nonce
    auto again = Handshake::server(who(2));
    (void)again.step({});
    const auto s = step(again, prove);
    refused += s.phase == Phase::refused && s.code == RefuseCode::bad_mac;
  }
  EXPECT_EQ(refused, 20'000);
  // Also to another rank of the same job, by a man in the middle who forwards the HELLO.
  auto other = Handshake::server(who(3));
  auto victim = Handshake::client(who(1), Purpose::data, 2);
  EXPECT_EQ(step(other, step(victim, other.step({}).out).out).code, RefuseCode::rank_range);
}

/// Every changed bit is detected, no end completes the handshake, and damage does not count against any rank.
TEST(HandshakeTest, EveryFlippedBitIsDamage) {
  const auto feed = [](Handshake& h, const Bytes& in) {
    Handshake::Step step;
    for (std::size_t i = 0; i < in.size() && !h.over();) {
      const std::size_t n = std::min(h.wants(), in.size() - i);
      step = h.step({in.data() + i, n});
      i += n;
    }
    return step;
  };
  for (int frame = 0; frame < 3; ++frame) {
    std::size_t size = 1;
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      auto server = Handshake::server(who(2), seeded(1)),
           client = Handshake::client(who(1), Purpose::data, 2, seeded(2));
      Handshake::Step heard;  // of the end that received the damaged frame
      Bytes b = server.step({}).out;
      for (int now = 0; now <= frame; ++now) {
        if (now == frame) size = b.size(), b[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
        heard = feed(now == 1 ? server : client, b);
        b = heard.out;
      }
      const bool longer = bit / 8 >= 8 && bit / 8 < 12;  // it waits for data that never arrives
      ASSERT_TRUE(heard.phase == Phase::refused || (longer && heard.phase == Phase::ongoing))
          << frame << ": " << bit;
      if (heard.phase == Phase::ongoing) continue;
      ASSERT_EQ(heard.why.reason(), Reason::data_corrupt) << frame << ": " << bit << heard.why.message();
      ASSERT_TRUE(heard.out.empty());
      ASSERT_FALSE(heard.code);
    }
  }
}

TEST(HandshakeTest, OtherMajorVersionIsRefusedAsBadVersion) {
  auto server = Handshake::server(who(2));
  (void)server.step({});
  Bytes newer = framed(257, Bytes(40, 1));
  newer[4] = 9;
  put_number(newer.data() + 20, static_cast<std::uint32_t>(XXH3_64bits_withSeed(
                                    newer.data() + 24, 40, XXH3_64bits(newer.data(), 20))));
  (void)server.step(View(newer).first(24));
  const auto s = server.step(View(newer).subspan(24));
  EXPECT_EQ(s.phase, Phase::refused);
  EXPECT_EQ(s.code, RefuseCode::bad_version);
  EXPECT_THAT(s.why.message(), testing::AllOf(HasSubstr("9.0"), HasSubstr("1.0")));
}

TEST(HandshakeTest, VersionZeroIsRefused) {
  auto server = Handshake::server(who(2)), client = Handshake::client(who(1), Purpose::data, 2);
  const auto step = [](Handshake& h, const Bytes& in) {
    (void)h.step(View(in).first(kHeaderBytes));
    return h.step(View(in).subspan(kHeaderBytes));
  };
  const Bytes hello = server.step({}).out;
  Bytes payload = step(client, hello).out;
  payload.erase(payload.begin(), payload.begin() + kHeaderBytes);
  payload[53] = payload[54] = 0;  // after the nonce, the job, the generation and the features
  Writer id;
  id.raw(who(2).job), id.number(who(2).generation);
  const Key key = *hkdf(who(2).secret.bytes(), {view("ouro job"), id.bytes});
  const std::size_t signed_bytes = payload.size() - sizeof(Key);
  const Key mac =
      *hmac(key, {view("ouro c1"), View(hello).subspan(kHeaderBytes), View(payload).first(signed_bytes)});
  std::copy(mac.begin(), mac.end(), payload.begin() + static_cast<std::ptrdiff_t>(signed_bytes));
  const auto s = step(server, framed(257, payload));
  EXPECT_EQ(s.phase, Phase::refused);
  EXPECT_EQ(s.code, RefuseCode::bad_version) << s.why.message();
}

TEST(HandshakeTest, OtherProtocolsAreNamedByTheirFirstBytes) {
  const std::pair<std::string, const char*> strangers[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), "TLS"},
      {"SSH-2.0-OpenSSH_9.2\r\n", "SSH"},
      {std::string("\x03\x00\x00\x13\x0e\xe0", 6), "RDP"},
      {"\r\n", "an empty line"},
      {"hello", "nothing known"},
  };
  for (const auto& [text, word] : strangers) {
    auto server = Handshake::server(who(2));
    (void)server.step({});
    const auto s = server.step(view(text).first(std::min(text.size(), server.wants())));
    EXPECT_EQ(s.phase, Phase::refused);
    EXPECT_TRUE(s.out.empty()) << "strangers get no answer";
    EXPECT_FALSE(s.code);
    EXPECT_THAT(s.why.message(), HasSubstr(fmt::format("looks like {}", word)));
  }
}

TEST(HandshakeTest, InvalidLengthsAreRefusedBeforeBuffering) {
  for (const std::uint32_t length : {0u, 489u, 512u, 65'536u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    auto server = Handshake::server(who(2));
    (void)server.step({});
    Writer w;
    w.number(kMagic), w.number(kMajor), w.number(kMinor), w.number(std::uint16_t{257}), w.number(length),
        w.number(std::uint64_t{0}), w.number(std::uint32_t{0});
    EXPECT_EQ(server.step(w.bytes).phase, Phase::refused) << length;
    EXPECT_EQ(server.wants(), 0u);
  }
  auto server = Handshake::server(who(2));
  (void)server.step({});
  EXPECT_EQ(server.step(Bytes(25, 0)).phase, Phase::refused) << "more than it wants";
}

}  // namespace
}  // namespace ouro::wire
