// Frames that ranks of one host exchange over local sockets, and the header that the handshake between hosts
// shares with them: pure encoding and parsing, no sockets. What is parsed here comes from outside and is
// never trusted. Used by bootstrap (joining), the watch thread (descriptor requests) and the handshake.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::wire {

using Nonce = std::array<std::uint8_t, 16>;
using Bytes = std::vector<std::uint8_t>;
/// Two digits a byte.
std::string hex(std::span<const std::uint8_t>);

/// Header, 24 bytes, little-endian: magic u32 | major u8 | minor u8 | type u16 | length u32 | seq u64 | xxh3
/// u32 (low half of XXH3 over the payload, with XXH3 over the 20 bytes before it as the seed). The same in
/// every version, so that two versions can tell each other from damage. A frame is at most kMaxFrame bytes in
/// all.
inline constexpr std::uint32_t kMagic = 0x4f52554f;  // "OURO"
inline constexpr std::uint8_t kMajor = 1, kMinor = 0;
inline constexpr std::size_t kHeaderBytes = 24, kMaxFrame = 4096, kMaxText = 1024, kMaxName = 100,
                             kMaxAddress = 2048;
inline constexpr std::uint32_t kMaxWorld = 65'536;

/// A rank asks to join. Carries two descriptors: its control segment, and a pidfd of itself (or none).
struct Join {
  Nonce job{};
  std::uint32_t rank = 0, world = 0;
  std::int32_t pid = 0;
  std::string host;      ///< host name
  std::string server;    ///< abstract socket name on which this rank hands out descriptors
  std::string settings;  ///< what must be equal on all ranks, "KEY=VALUE KEY=VALUE"
  // Of a job on several hosts:
  std::string endpoint;  ///< on which this rank takes connections of other hosts
  Bytes address;         ///< opaque: where the fabric between hosts finds it, at most kMaxAddress bytes
};
/// One member of the complete job, with its two descriptors if it is on this host; sent once for each rank to
/// each rank.
struct Member {
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::string host, server;
  std::uint32_t node = 0;  ///< index of its host; one on this host comes with its descriptors, others without
  std::string endpoint;
  Bytes address;
};
/// The end of a hopeful connection, and why.
struct Refuse {
  Reason reason = Reason::refused;
  std::int32_t rank = -1;
  std::string text;
};
/// Asks a rank for the descriptor of one of its segments.
struct Fetch {
  /// multicast: a multicast object, of the rank that makes it; join, bind: that the rank's GPU does so, to
  /// the object whose descriptor comes with the frame.
  enum class Kind : std::uint8_t { group, allocation, gpu, gpu_group, multicast, join, bind };
  Kind kind = Kind::group;
  Nonce job{};
  std::uint64_t key = 0;    ///< of memory that is made on demand; allocation, gpu: its id
  std::uint64_t bytes = 0;  ///< its size, where it is made on demand; else ignored
  std::uint32_t ranks = 0;  ///< multicast, join, bind: how many have a part in the object
};
struct Grant {
  std::uint64_t bytes = 0;
};
/// Device memory by the driver's own handle, which needs no descriptor.
struct Loan {
  std::uint64_t bytes = 0;
  std::array<std::uint8_t, 64> handle{};
};

using Frame = std::variant<Join, Member, Refuse, Fetch, Grant, Loan>;

/// Texts beyond their limits are cut; see check().
Bytes encode(const Frame&);
/// Whether a request keeps its limits: what is cut off would be missed only later, elsewhere. Error invalid:
/// what is too long.
Status check(const Join&);
/// Errors (refused) say what was wrong: too short, bad magic (and what it looks like), version, length,
/// checksum, a text that is too long, a number out of range, bytes left over.
Result<Frame> decode(std::span<const std::uint8_t>);
/// The header, and the payload behind it.
Bytes framed(std::uint16_t type, std::span<const std::uint8_t> payload);
/// Whether a frame, which has at least a header, has come as it was sent.
bool intact(std::span<const std::uint8_t> frame);
/// Printable form of text that a peer sent: bounded, control characters escaped.
std::string printable(std::span<const std::uint8_t> text, std::size_t limit = 64);

}  // namespace ouro::wire
