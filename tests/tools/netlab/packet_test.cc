// How tapnet parses frames, and how it changes them.
#include "tools/net/packet.h"

#include <gtest/gtest.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ouro::net {
namespace {

using Frame = std::vector<std::uint8_t>;

void put16(Frame& f, std::size_t at, std::size_t value) {
  f[at] = static_cast<std::uint8_t>(value >> 8);
  f[at + 1] = static_cast<std::uint8_t>(value);
}

/// Sum over addresses, protocol, length, header and payload, as defined in RFC 793 and 768; 0xffff if the
/// checksum is right.
std::uint32_t checksum(const Frame& f, std::size_t addresses, std::size_t header, std::size_t end) {
  std::uint32_t sum = f[header == 34 ? 23 : 20] + static_cast<std::uint32_t>(end - header);
  const auto add = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; i += 2)
      sum += static_cast<std::uint32_t>(f[i] << 8 | (i + 1 < to ? f[i + 1] : 0));
  };
  add(addresses, header);
  add(header, end);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

/// A frame of Ethernet, IPv4 or IPv6, TCP or UDP, a payload, and three bytes of padding.
Frame frame(bool ip6, bool udp, std::size_t payload) {
  const std::size_t header = ip6 ? 54 : 34, length = (udp ? 8 : 20) + payload, end = header + length;
  Frame f(end + 3, 0);
  put16(f, 12, ip6 ? 0x86dd : 0x0800);
  if (ip6) {
    f[14] = 0x60;
    put16(f, 18, length);
    f[20] = udp ? 17 : 6;
  } else {
    f[14] = 0x45;
    put16(f, 16, 20 + length);
    f[23] = udp ? 17 : 6;
  }
  for (std::size_t i = ip6 ? 22 : 26; i < header; ++i) f[i] = static_cast<std::uint8_t>(7 * i);
  put16(f, header, 5000);
  put16(f, header + 2, 6000);
  if (udp) put16(f, header + 4, length);
  if (!udp) f[header + 12] = 0x50;
  for (std::size_t i = 0; i < payload; ++i) f[end - payload + i] = static_cast<std::uint8_t>(31 * i + 5);
  put16(f, header + (udp ? 6 : 16), ~checksum(f, ip6 ? 22 : 26, header, end) & 0xffff);
  return f;
}

TEST(Packet, ParsesHeadersAndPayload) {
  for (const bool ip6 : {false, true})
    for (const bool udp : {false, true}) {
      const Frame f = frame(ip6, udp, 11);
      const Packet p = parse(f.data(), f.size());
      EXPECT_EQ(p.end, f.size() - 3);
      EXPECT_EQ(p.payload, p.end - 11);
      EXPECT_EQ(p.udp, udp);
      EXPECT_TRUE(p.is_subject());
      EXPECT_TRUE(p.has_payload());
      EXPECT_FALSE(parse(f.data(), 30).is_subject());
    }
}

TEST(Packet, ControlPacketsAndFragmentsAreNotChanged) {
  Frame arp(60, 0);
  put16(arp, 12, 0x0806);
  EXPECT_FALSE(parse(arp.data(), arp.size()).is_subject());
  Frame solicitation = frame(true, true, 20);
  solicitation[20] = 58;
  solicitation[54] = 135;
  EXPECT_FALSE(parse(solicitation.data(), solicitation.size()).is_subject());
  solicitation[54] = 128;  // an echo request counts as traffic
  EXPECT_TRUE(parse(solicitation.data(), solicitation.size()).is_subject());
  Frame fragment = frame(false, false, 20);
  put16(fragment, 20, 0x2000);
  EXPECT_FALSE(parse(fragment.data(), fragment.size()).has_payload());
}

TEST(Packet, NoFrameIsReadBeyondItsEnd) {
  const Frame whole = frame(true, false, 40);
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    const Frame cut(whole.begin(),
                    // A heap block of its own, so that sanitizers detect overruns.
                    whole.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_LE(parse(cut.data(), n).end, n);
  }
}

TEST(Flip, ChangesOneBitOfThePayloadAndRepairsTheChecksum) {
  for (const bool ip6 : {false, true})
    for (const bool udp : {false, true})
      for (const std::size_t payload : {1u, 2u, 7u, 64u})
        for (std::uint64_t n = 0; n < 200; ++n) {
          const Frame before = frame(ip6, udp, payload);
          const Packet p = parse(before.data(), before.size());
          const std::size_t header = ip6 ? 54 : 34, addresses = ip6 ? 22 : 26;
          ASSERT_EQ(checksum(before, addresses, header, p.end), 0xffffu);
          Frame repaired = before, broken = before;
          flip_bit(repaired, p, Dice(1, 0, 1, n), true);
          flip_bit(broken, p, Dice(1, 0, 1, n), false);
          std::size_t bits = 0;
          for (std::size_t i = p.payload; i < p.end; ++i) {
            bits += std::bitset<8>(static_cast<unsigned>(before[i] ^ repaired[i])).count();
            EXPECT_EQ(repaired[i], broken[i]);
          }
          EXPECT_EQ(bits, 1u);
          EXPECT_EQ(checksum(repaired, addresses, header, p.end), 0xffffu);
          EXPECT_NE(checksum(broken, addresses, header, p.end), 0xffffu);
        }
}

TEST(Dice, DrawsDependOnSeedLinkAndNumberOnly) {
  int hits = 0, same = 0;
  for (std::uint64_t n = 0; n < 10'000; ++n) {
    EXPECT_EQ(Dice(7, 0, 1, n).bits(Draw::loss), Dice(7, 0, 1, n).bits(Draw::loss));
    const bool hit = Dice(7, 0, 1, n).hit(Draw::loss, 0.1);
    hits += hit;
    for (const Dice& other : {Dice(8, 0, 1, n), Dice(7, 1, 0, n), Dice(7, 0, 1, n + 1)})
      same += hit && other.hit(Draw::loss, 0.1);
    same += hit && Dice(7, 0, 1, n).hit(Draw::dup, 0.1);
  }
  EXPECT_NEAR(hits, 1000, 100);
  EXPECT_NEAR(same, 400, 90);  // four other places, each with a tenth of the hits
}

}  // namespace
}  // namespace ouro::net
