// Parses IPv4, IPv6, TCP and UDP headers as far as faults need them. Used through packet.h.
#include "tools/net/packet.h"

#include <algorithm>

namespace ouro::net {
namespace {

constexpr std::size_t kEthernet = 14, kIpv4 = 20, kIpv6 = 40;  // bytes of headers
constexpr std::uint8_t kTcp = 6, kUdp = 17, kIcmp6 = 58, kEchoRequest6 = 128, kEchoReply6 = 129;

std::uint32_t folded(std::uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

}  // namespace

Packet parse(const std::uint8_t* f, std::size_t n) {
  Packet p;
  const auto be16 = [&](std::size_t at) { return static_cast<std::size_t>(f[at] << 8 | f[at + 1]); };
  if (n < kEthernet + kIpv4) return p;
  std::size_t header = 0;  // number of the protocol above IP
  std::uint8_t protocol = 0;
  if (be16(12) == 0x0800) {
    const bool fragment = (be16(20) & 0x3fff) != 0;  // fragments are left alone
    p.ip4 = true;
    p.ip_length = be16(16);
    header = kEthernet + static_cast<std::size_t>(f[14] & 15) * 4;
    protocol = fragment ? std::uint8_t{0} : f[23];
  } else if (be16(12) == 0x86dd && n >= kEthernet + kIpv6) {
    p.ip_length = kIpv6 + be16(18);
    header = kEthernet + kIpv6;
    protocol = f[20];
    p.echo6 = protocol == kIcmp6 && n > header && (f[header] == kEchoRequest6 || f[header] == kEchoReply6);
  }
  p.end = std::min(n, kEthernet + p.ip_length);
  if (protocol == kTcp && p.end >= header + 20) {
    p.checksum = header + 16;
    p.payload = header + static_cast<std::size_t>(f[header + 12] >> 4) * 4;
  } else if (protocol == kUdp && p.end >= header + 8) {
    p.checksum = header + 6;
    p.payload = header + 8;
    p.udp = true;
  }
  return p;
}

void flip_bit(std::vector<std::uint8_t>& f, const Packet& p, const Dice& dice, bool fixup) {
  const std::size_t at = p.payload + dice.bits(Draw::byte) % (p.end - p.payload);
  const std::size_t word =
      at & ~std::size_t{1};  // headers have even lengths: checksum words start at even offsets
  const auto load = [&](std::size_t i) {
    return static_cast<std::uint32_t>(f[i] << 8 | (i + 1 < p.end ? f[i + 1] : 0));
  };
  const std::uint32_t before = load(word);
  f[at] = static_cast<std::uint8_t>(f[at] ^ (1u << (dice.bits(Draw::bit) & 7)));
  const std::uint32_t old = load(p.checksum);
  if (!fixup || (p.udp && old == 0)) return;  // a UDP checksum of 0 means that there is none
  std::uint32_t sum =
      ~folded((~old & 0xffff) + (~before & 0xffff) + load(word)) & 0xffff;  // RFC 1624, equation 3
  if (p.udp && sum == 0) sum = 0xffff;
  f[p.checksum] = static_cast<std::uint8_t>(sum >> 8);
  f[p.checksum + 1] = static_cast<std::uint8_t>(sum);
}

}  // namespace ouro::net
