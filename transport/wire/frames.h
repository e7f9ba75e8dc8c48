// Frames that ranks of one host exchange over local sockets, and the header that the handshake between hosts
// shares with them: pure encoding and parsing, no sockets. Parsed data comes from outside and is never
// trusted. Used by bootstrap (joining), the watch thread (descriptor requests) and the handshake.
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
/// Two digits per byte.
std::string hex(std::span<const std::uint8_t>);

/// Header, 24 bytes, little-endian: magic u32 | major u8 | minor u8 | type u16 | length u32 | seq u64 | xxh3
/// u32 (low half of XXH3 over the payload, with XXH3 over the 20 bytes before it as the seed). The header is
/// the same in every version, so that a peer of another version can be distinguished from damage. A whole
/// frame has at most kMaxFrame bytes.
inline constexpr std::uint32_t kMagic = 0x4f52554f;  // "OURO"
inline constexpr std::uint8_t kMajor = 1, kMinor = 0;
inline constexpr std::size_t kHeaderBytes = 24, kMaxFrame = 4096, kMaxText = 1024, kMaxName = 100,
                             kMaxAddress = 2048;
inline constexpr std::uint32_t kMaxWorld = 65'536;

/// A rank's request to join. Carries two descriptors: its control segment, and a pidfd of itself (or none).
struct Join {
  Nonce job{};
  std::uint32_t rank = 0, world = 0;
  std::int32_t pid = 0;
  std::string host;      ///< host name
  std::string server;    ///< abstract socket name on which this rank serves descriptors
  std::string settings;  ///< settings that must be equal on all ranks, "KEY=VALUE KEY=VALUE"
  // Only a job on several hosts has the following.
  std::string endpoint;  ///< address on which this rank accepts connections from other hosts
  Bytes address;  ///< opaque: the rank's address for the fabric between hosts, at most kMaxAddress bytes
};
/// One member of the complete job, with its two descriptors if it is on this host; each rank gets one such
/// frame for each rank.
struct Member {
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::string host, server;
  /// The index of its host. Members on this host are sent with their descriptors, others without.
  std::uint32_t node = 0;
  std::string endpoint;
  Bytes address;
};
/// Refuses a request, with the reason.
struct Refuse {
  Reason reason = Reason::refused;
  std::int32_t rank = -1;
  std::string text;
};
/// Asks a rank for the descriptor of one of its segments.
struct Fetch {
  /// multicast: a multicast object, requested from the rank that makes it; join, bind: a request that the
  /// rank's GPU joins, or binds memory to, the object whose descriptor is sent with the frame. gpu_mapped: a
  /// question whether the rank still maps device memory of the asking rank; the answer is a Grant of 1
  /// byte or of 0.
  enum class Kind : std::uint8_t { group, allocation, gpu, gpu_group, multicast, join, bind, gpu_mapped };
  Kind kind = Kind::group;
  Nonce job{};
  std::uint64_t key = 0;    ///< identifies memory that is made on demand; allocation, gpu: its id
  std::uint64_t bytes = 0;  ///< its size, if it is made on demand; gpu: the first of the pieces wanted
  std::uint32_t ranks =
      0;  ///< multicast, join, bind: number of ranks that share it; gpu_mapped: the asking rank
};
struct Grant {
  std::uint64_t bytes = 0;
};
/// Device memory by the driver's own handle, which needs no descriptor.
struct Loan {
  std::uint64_t bytes = 0;
  std::array<std::uint8_t, 64> handle{};
};
/// Device memory in adjacent pieces. The descriptors of some of them are sent with the frame, in order.
struct Pieces {
  static constexpr std::size_t kMost = 32;  ///< in a frame
  std::uint64_t bytes = 0;                  ///< of all pieces
  std::vector<std::uint64_t> sizes;         ///< of those in this frame
};

using Frame = std::variant<Join, Member, Refuse, Fetch, Grant, Loan, Pieces>;

/// Texts beyond their limits are cut; see check().
Bytes encode(const Frame&);
/// Checks that a request keeps its limits: otherwise encode() would cut it, and the error would show only
/// later and elsewhere. Error invalid: names the part that is too long.
Status check(const Join&);
/// Errors (refused) state the problem: too short, bad magic (and what the bytes look like), version, length,
/// checksum, a text that is too long, a number out of range, bytes left over.
Result<Frame> decode(std::span<const std::uint8_t>);
/// A frame: the header, followed by the payload.
Bytes framed(std::uint16_t type, std::span<const std::uint8_t> payload);
/// Whether a frame, which has at least a header, arrived undamaged (checksum).
bool intact(std::span<const std::uint8_t> frame);
/// Printable form of text that a peer sent: bounded, control characters escaped.
std::string printable(std::span<const std::uint8_t> text, std::size_t limit = 64);

}  // namespace ouro::wire
