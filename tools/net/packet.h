// Frames as the emulator sees them: parses what they carry and flips one of their bits. Used by tapnet.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ouro::net {

enum class Draw : std::uint64_t { loss, corrupt, byte, bit, reorder, dup, jitter };

/// Counter-based random numbers: a decision is a function of seed, link, packet number and kind. It depends
/// neither on timing nor on the traffic of other links, so with the same seed the n-th packet of a link
/// always has the same fate.
class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t from, std::uint64_t to, std::uint64_t number)
      : key_(mix(mix(seed) ^ mix(from << 32 | to) ^ mix(~number))) {}
  std::uint64_t bits(Draw draw) const { return mix(key_ ^ mix(static_cast<std::uint64_t>(draw) + 1)); }
  double unit(Draw draw) const { return static_cast<double>(bits(draw) >> 11) * 0x1p-53; }  ///< [0, 1)
  bool hit(Draw draw, double probability) const { return unit(draw) < probability; }

 private:
  static std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

/// Offsets into an Ethernet frame; 0: absent.
struct Packet {
  std::size_t ip_length = 0;
  std::size_t checksum = 0;  ///< of TCP or UDP
  std::size_t payload = 0, end = 0;
  bool echo6 = false, ip4 = false, udp = false;
  /// Housekeeping packets (ARP, neighbour discovery, MLD) are exempt from random faults: their timing differs
  /// from run to run and would shift the decisions.
  bool is_subject() const { return ip4 || checksum != 0 || echo6; }
  bool has_payload() const { return checksum != 0 && payload < end; }
};

Packet parse(const std::uint8_t* frame, std::size_t bytes);

/// Flips one bit of the payload. With `fixup` the checksum is corrected, so that the flipped bit reaches
/// the application.
void flip_bit(std::vector<std::uint8_t>& frame, const Packet& packet, const Dice& dice, bool fixup);

}  // namespace ouro::net
