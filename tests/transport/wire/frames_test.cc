// Frames of the control plane: round trips, golden bytes, and everything an outsider may send instead.
#include "transport/wire/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::wire {
namespace {

Nonce nonce() {
  Nonce n;
  for (std::size_t i = 0; i < n.size(); ++i) n[i] = static_cast<std::uint8_t>(i);
  return n;
}

std::vector<Frame> frames() {
  return {Join{nonce(), 3, 8, 4711, "node7", "ouro/x/3", "A=1 B=2"},
          Join{nonce(), 0, 1, -1, "", "", ""},
          Join{nonce(), 65'535, kMaxWorld, 1, std::string(kMaxName, 'h'), std::string(kMaxName, 's'),
               std::string(kMaxText, 't')},
          Member{7, 12, "host", "server"},
          Refuse{Reason::mismatch, 2, "world sizes differ"},
          Refuse{Reason::device, -1, std::string(kMaxText, '\0')},
          Fetch{Fetch::Kind::allocation, nonce(), ~std::uint64_t{0}, 1},
          Fetch{Fetch::Kind::group, {}, 0, ~std::uint64_t{0}},
          Fetch{Fetch::Kind::gpu, nonce(), 9, 0},
          Fetch{Fetch::Kind::gpu_group, nonce(), 1, 1 << 20},
          Fetch{Fetch::Kind::bind, nonce(), 1, 1 << 20, kMaxWorld},
          Grant{std::uint64_t{1} << 40},
          Loan{std::uint64_t{1} << 33, {1, 2, 3, 255}},
          Fetch{Fetch::Kind::gpu_mapped, nonce(), 9, 0, 3},
          Pieces{3 << 20, {1 << 20, 2 << 20}},
          Pieces{~std::uint64_t{0}, std::vector<std::uint64_t>(Pieces::kMost, 1)}};
}

/// A frame with a correct header for any payload, as an attacker who has the source could make it.
Bytes forge(std::uint16_t type, const Bytes& payload) {
  Bytes b;
  const auto number = [&](std::uint64_t v, int n) {
    for (int i = 0; i < n; ++i) b.push_back(static_cast<std::uint8_t>(v >> (8 * i)));
  };
  number(kMagic, 4), number(kMajor, 1), number(kMinor, 1), number(type, 2), number(payload.size(), 4),
      number(0, 8);
  const std::uint64_t seed = XXH3_64bits(b.data(), b.size());
  number(static_cast<std::uint32_t>(XXH3_64bits_withSeed(payload.data(), payload.size(), seed)), 4);
  b.insert(b.end(), payload.begin(), payload.end());
  return b;
}
Bytes payload_of(const Bytes& frame) { return {frame.begin() + kHeaderBytes, frame.end()}; }
std::uint16_t type_of(const Frame& f) { return static_cast<std::uint16_t>(f.index()); }

/// Whether an accepted frame satisfies the guarantees that its users rely on.
bool sane(const Frame& f) {
  if (const auto* j = std::get_if<Join>(&f))
    return j->world >= 1 && j->world <= kMaxWorld && j->host.size() <= kMaxName &&
           j->server.size() <= kMaxName && j->settings.size() <= kMaxText;
  if (const auto* m = std::get_if<Member>(&f))
    return m->rank < kMaxWorld && m->host.size() <= kMaxName && m->server.size() <= kMaxName;
  if (const auto* r = std::get_if<Refuse>(&f))
    return r->reason <= Reason::device && r->text.size() <= kMaxText;
  if (const auto* x = std::get_if<Fetch>(&f))
    return x->kind <= Fetch::Kind::gpu_mapped && x->ranks <= kMaxWorld;
  if (const auto* x = std::get_if<Pieces>(&f)) return !x->sizes.empty() && x->sizes.size() <= Pieces::kMost;
  return true;
}

TEST(Frames, EveryFrameSurvivesEncodingAndDecoding) {
  for (const Frame& f : frames()) {
    const Bytes b = encode(f);
    EXPECT_LE(b.size(), kMaxFrame);
    const auto back = decode(b);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->index(), f.index());
    EXPECT_EQ(encode(*back), b);
  }
  const auto join = decode(encode(frames()[0]));
  ASSERT_TRUE(join.ok());
  const auto& j = std::get<Join>(*join);
  EXPECT_EQ(j.job, nonce());
  EXPECT_EQ(j.rank, 3u);
  EXPECT_EQ(j.world, 8u);
  EXPECT_EQ(j.pid, 4711);
  EXPECT_EQ(j.host, "node7");
  EXPECT_EQ(j.server, "ouro/x/3");
  EXPECT_EQ(j.settings, "A=1 B=2");
  const auto refuse = decode(encode(frames()[4]));
  EXPECT_EQ(std::get<Refuse>(*refuse).reason, Reason::mismatch);
  EXPECT_EQ(std::get<Refuse>(*refuse).rank, 2);
  const auto fetch = decode(encode(frames()[6]));
  EXPECT_EQ(std::get<Fetch>(*fetch).key, ~std::uint64_t{0});
}

TEST(Frames, LongTextsAreCut) {
  const auto back = decode(encode(Refuse{Reason::refused, 0, std::string(5000, 'x')}));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Refuse>(*back).text.size(), kMaxText);
}

TEST(Frames, OversizedFieldOfARequestIsNamed) {
  const Join good{nonce(), 3, 8, 4711, "h", "s", std::string(kMaxText, 't'), "e", Bytes(kMaxAddress)};
  EXPECT_TRUE(check(good).ok());
  const std::pair<std::function<void(Join&)>, const char*> cases[] = {
      {[](Join& j) { j.address.push_back(1); }, "the fabric's address has 2049 bytes; at most 2048"},
      {[](Join& j) { j.settings += 't'; }, "the text of the settings has 1025 bytes"},
      {[](Join& j) { j.server.resize(kMaxName + 1); }, "the local socket has 101 bytes"},
      {[](Join& j) { j.endpoint.resize(kMaxName + 1); }, "for other hosts has 101 bytes"}};
  for (const auto& [change, words] : cases) {
    Join j = good;
    change(j);
    EXPECT_EQ(check(j).reason(), Reason::invalid);
    EXPECT_THAT(check(j).message(), testing::HasSubstr(words));
  }
}

/// The layout is fixed for compatibility with other builds: little-endian, no padding.
TEST(Frames, EncodedBytesMatchTheFixedLayout) {
  const Bytes grant = encode(Grant{0x0102030405060708});
  EXPECT_EQ(hex({grant.data(), 20}),
            "4f55524f"
            "01"
            "00"
            "0400"
            "08000000"
            "0000000000000000");
  EXPECT_EQ(hex(payload_of(grant)), "0807060504030201");
  EXPECT_EQ(hex(payload_of(encode(Pieces{3, {1, 2}}))),
            "0300000000000000"
            "02"
            "0100000000000000"
            "0200000000000000");
  EXPECT_EQ(hex(payload_of(encode(Refuse{Reason::mismatch, -1, "no"}))),
            "04"
            "ffffffff"
            "0200"
            "6e6f");
  EXPECT_EQ(hex(payload_of(encode(Fetch{Fetch::Kind::allocation, nonce(), 5, 6, 7}))),
            "01"
            "000102030405060708090a0b0c0d0e0f"
            "0500000000000000"
            "0600000000000000"
            "07000000");
  EXPECT_EQ(hex(payload_of(encode(Join{nonce(), 1, 2, 3, "h", "s", "", "e", {9}}))),
            "000102030405060708090a0b0c0d0e0f"
            "01000000"
            "02000000"
            "03000000"
            "010068"
            "010073"
            "0000"
            "010065"
            "010009");
  EXPECT_EQ(hex(payload_of(encode(Member{1, 2, "h", "", 3, "e", {9}}))),
            "01000000"
            "02000000"
            "010068"
            "0000"
            "03000000"
            "010065"
            "010009");
  for (const Frame& f : frames())
    EXPECT_EQ(encode(f), forge(type_of(f), payload_of(encode(f))));  // the checksum too
}

TEST(Frames, EveryTruncationIsRefused) {
  for (const Frame& f : frames()) {
    const Bytes b = encode(f);
    for (std::size_t n = 0; n < b.size(); ++n)
      EXPECT_EQ(decode({b.data(), n}).status().reason(), Reason::refused) << n;
    const Bytes payload = payload_of(b);  // and with a header that fits the shorter payload
    for (std::size_t n = 0; n < payload.size(); ++n) {
      const Bytes forged =
          forge(type_of(f), {payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(n)});
      EXPECT_EQ(decode(forged).status().reason(), Reason::refused) << n;
    }
    Bytes longer = payload;
    longer.push_back(0);
    EXPECT_EQ(decode(forge(type_of(f), longer)).status().reason(), Reason::refused);
  }
}

TEST(Frames, EveryFlippedByteIsRefused) {
  for (const Frame& f : {frames()[0], frames()[3], frames()[4], frames()[6], frames()[8]}) {
    const Bytes good = encode(f);
    for (std::size_t at = 0; at < good.size(); ++at)
      for (int flip = 1; flip < 256; ++flip) {
        Bytes b = good;
        b[at] = static_cast<std::uint8_t>(b[at] ^ flip);
        ASSERT_EQ(decode(b).status().reason(), Reason::refused) << "byte " << at << " flipped by " << flip;
        // The same change with a correct checksum: accepted or not, accepted values are within their bounds.
        if (at < kHeaderBytes) continue;
        const auto forged = decode(forge(type_of(f), payload_of(b)));
        ASSERT_TRUE(!forged.ok() || sane(*forged)) << "byte " << at << " flipped by " << flip;
      }
  }
}

TEST(Frames, InvalidLengthsAreRefused) {
  for (const std::uint32_t length : {0u, 1u, 7u, 9u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    Bytes b = encode(Grant{1});
    std::memcpy(b.data() + 8, &length, sizeof length);
    EXPECT_EQ(decode(b).status().reason(), Reason::refused) << length;
  }
  EXPECT_EQ(decode(Bytes(kMaxFrame + 1, 0x4f)).status().reason(), Reason::refused);
  EXPECT_EQ(decode(Bytes(1 << 20, 0)).status().reason(), Reason::refused);
  for (const std::uint16_t n : std::initializer_list<std::uint16_t>{
           101, 1025, 0x7fff, 0xffff}) {  // a text longer than allowed, or than the frame
    Bytes payload = payload_of(encode(Member{1, 2, "", ""}));
    std::memcpy(payload.data() + 8, &n, sizeof n);
    EXPECT_EQ(decode(forge(1, payload)).status().reason(), Reason::refused) << n;
    payload.resize(kMaxFrame - kHeaderBytes, 'x');
    EXPECT_EQ(decode(forge(1, payload)).status().reason(), Reason::refused) << n;
  }
  EXPECT_EQ(decode(forge(0, payload_of(encode(Join{nonce(), 0, 0, 1, "", "", ""})))).status().reason(),
            Reason::refused)
      << "no ranks";
  EXPECT_EQ(
      decode(forge(0, payload_of(encode(Join{nonce(), 0, kMaxWorld + 1, 1, "", "", ""})))).status().reason(),
      Reason::refused);
  EXPECT_EQ(decode(forge(1, payload_of(encode(Member{kMaxWorld, 1, "", ""})))).status().reason(),
            Reason::refused);
  for (const std::uint16_t type : std::initializer_list<std::uint16_t>{6, 7, 255, 0xffff})
    EXPECT_EQ(decode(forge(type, Bytes(8))).status().reason(), Reason::refused) << type;
}

TEST(Frames, RefusalQuotesTheReceivedBytes) {
  const auto text = [](std::string_view s) { return Bytes(s.begin(), s.end()); };
  EXPECT_THAT(decode(text("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")).status().message(),
              testing::HasSubstr("GET / HTTP/1.1\\x0d\\x0a"));
  EXPECT_THAT(decode(text("hi")).status().message(), testing::HasSubstr("'hi'"));
  Bytes newer = encode(Grant{1});
  newer[4] = 9;
  EXPECT_THAT(decode(newer).status().message(),
              testing::AllOf(testing::HasSubstr("9.0"), testing::HasSubstr("1.0")));
}

TEST(Frames, RandomBytesAreRefusedQuickly) {
  std::mt19937_64 random(42);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Frame> all = frames();
  std::vector<Bytes> good;
  for (const Frame& f : all) good.push_back(payload_of(encode(f)));
  int taken = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    Bytes b;
    if (i % 2 == 0) {
      b.resize(random() % 256);
      for (auto& x : b) x = static_cast<std::uint8_t>(random());
      ASSERT_FALSE(decode(b).ok());
      continue;
    }
    const auto type = random() % all.size();
    b = good[type];  // a good payload with a few changes, with a correct checksum
    for (std::uint64_t k = random() % 4; k > 0 && !b.empty(); --k)
      b[random() % std::min<std::size_t>(b.size(), 64)] = static_cast<std::uint8_t>(random());
    if (random() % 4 == 0) b.resize(random() % 64);
    const auto r =
        decode(forge(static_cast<std::uint16_t>(random() % 8 == 0 ? random() % 6 : all[type].index()), b));
    taken += r.ok();
    ASSERT_TRUE(r.ok() ? sane(*r) : r.status().reason() == Reason::refused);
    ASSERT_LT(r.status().message().size(), 400u);
  }
  EXPECT_GT(taken, 1000) << "the fuzzer does not reach the parsers";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Printable, TextIsEscapedAndBounded) {
  const auto of = [](std::string_view s, std::size_t limit = 64) {
    return printable({reinterpret_cast<const std::uint8_t*>(s.data()), s.size()}, limit);
  };
  EXPECT_EQ(of("plain ~text"), "plain ~text");
  EXPECT_EQ(of(std::string_view("\0\n\x1b[31m\x7f\xff", 9)), "\\x00\\x0a\\x1b[31m\\x7f\\xff");
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("abcdef", 3), "abc");
  EXPECT_EQ(of(std::string(1000, 'a')).size(), 64u);
  EXPECT_EQ(of(std::string(1000, '\x01')).size(), 4 * 64u);
}

}  // namespace
}  // namespace ouro::wire
