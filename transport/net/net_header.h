// The header of each frame of a link between hosts, and its checksums. Used by the exchange, its links and
// the fabrics.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ouro::transport {

/// The header of each frame between two ranks, little-endian as in memory.
struct NetHeader {
  enum Kind : std::uint32_t {
    kOpen = 0x6f75726f,  ///< the sender has its end of the link set's link; answered by kOpened if the other
                         ///< side has its end, too
    kOpened,
    kChunk,   ///< payload follows
    kCredit,  ///< announces `freed`; `index`: chunks of the other direction that have arrived
    kAsk,     ///< requests a credit
    kResend,  ///< requests chunk `index` again, which arrived damaged or incomplete
    kGone,    ///< the sender has closed its end and takes nothing more; `index` is 1 if it knows the same of
              ///< the receiver
  };
  std::uint32_t kind, bytes;  ///< bytes of payload that follow
  std::uint64_t link_set, index;
  std::uint64_t freed;  ///< chunks of the other direction that the sender of this frame has given back
  std::uint64_t seq, signature, total;
  std::int32_t tag;
  std::uint32_t
      head_check;        ///< XXH3 over this header without it, checked before anything else; 0: not checked
  std::uint64_t check;   ///< XXH3 over this header (both checks zero) and the payload; 0: not checked
  std::uint32_t from;    ///< the sender, for fabrics that cannot identify it; zero in checksums
  std::uint32_t report;  ///< not 0: the sender waits until this chunk has been given back
};
static_assert(sizeof(NetHeader) == 80);

/// The checksum of a header, for `head_check`. Never 0.
std::uint32_t head_check_of(NetHeader);
/// The checksum of a header and the payload that follows it, for `check`. Never 0.
std::uint64_t check_of(NetHeader, const std::byte* payload);

}  // namespace ouro::transport
