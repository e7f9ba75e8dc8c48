// The exchange kernel: sends and receives of one rank, with any number of others, in one launch. Sends and
// receives of an ordered pair of ranks match in order. Interface for host code; used by the exchange path and
// by tests.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/gpu/collect.h"
#include "kernels/gpu/launch_end.h"
#include "kernels/gpu/resident.h"
#include "runtime/core/hd.h"
#include "runtime/core/status.h"

namespace ouro::gpu {

/// The layout of an exchange arena: the memory of one rank, on its device, that all ranks of the group map,
/// and that is all zero before the first launch. After a header (a word that is set when this rank has
/// failed, and one that another rank sets when it has failed) it has one part per channel. A part begins with
/// the state that outlives a launch, so that a captured launch can be replayed. Then come, each indexed by
/// the peer that writes it: the ring of entries of the peer's messages to this rank, `freed` (how many
/// entries of the ring to the peer it has taken), and the slots, which hold the data of the latest entries.
struct ExchangeLayout {
  static constexpr int kMaxRanks = 64, kMaxChannels = 64;
  static constexpr int kEntries = 32;  ///< of a ring: messages that are announced and not yet taken
  static constexpr int kSlots = 4;     ///< entries of a ring that can hold data at the same time
  static constexpr std::uint64_t kLine = 128,
                                 kEndedAt = 64;  ///< in the header: counts blocks that have ended
  int ranks = 0, channels = 0;
  std::uint64_t slot_bytes = 0;                                                 ///< a multiple of 128
  std::uint64_t entries_at = 0, freed_at = 0, slots_at = 0, channel_bytes = 0;  ///< within a channel
  std::uint64_t bytes() const { return kLine + static_cast<std::uint64_t>(channels) * channel_bytes; }
};
/// Errors: `invalid` for numbers of ranks or channels out of range.
Result<ExchangeLayout> exchange_layout(int ranks, int channels);

/// A send or a receive, without its peer.
struct ExchangeTransfer {
  std::byte* at;
  std::uint64_t bytes;
};

/// The part of a message that one channel moves.
struct ExchangeShare {
  std::uint64_t offset = 0, bytes = 0;
};
/// A message has one channel for each 16 KiB, from the first channel of its pair on.
OURO_HD int exchange_lanes(std::uint64_t bytes, int channels) {
  constexpr std::uint64_t kLane = 16 << 10;
  const std::uint64_t wanted = bytes / kLane + (bytes % kLane != 0),
                      most = static_cast<std::uint64_t>(channels);
  return wanted < 1 ? 1 : wanted > most ? channels : static_cast<int>(wanted);
}
OURO_HD int exchange_first_channel(int from, int to, int channels) { return (from + to) % channels; }
OURO_HD ExchangeShare exchange_share(std::uint64_t bytes, int lane, int lanes) {
  constexpr std::uint64_t kUnit = 128;
  const std::uint64_t units = bytes / kUnit + (bytes % kUnit != 0), n = static_cast<std::uint64_t>(lanes);
  const std::uint64_t each = (units / n + (units % n != 0)) * kUnit;
  const std::uint64_t begin = static_cast<std::uint64_t>(lane) * each;
  if (begin >= bytes) return {};
  return {begin, bytes - begin < each ? bytes - begin : each};
}

/// The sends and receives of one rank in one call. They lie in two lists, ordered by peer, and for each peer
/// in the order of the calls.
struct ExchangeArgs {
  static constexpr int kMaxRanks = ExchangeLayout::kMaxRanks;
  static constexpr int kInline = 48;  ///< transfers that fit into the arguments
  ExchangeLayout layout = {};
  int rank = 0;
  bool one_device = false;  ///< all ranks run in one process on one device: device scope suffices for flags
  std::uint64_t same_process = 0;  ///< a bit for each rank whose addresses are valid for this rank's device
  std::uint64_t channels = 0;      ///< a bit for each channel that moves data; one block serves each
  std::uint64_t deadline_ns = 0;   ///< from the start of the launch; not 0
  /// The launch ends early when this word is not 0. The word is mapped from the host.
  const std::uint32_t* abort = nullptr;
  ResidentError* error = nullptr;  ///< mapped from the host
  /// For each rank that a block waits for, the milliseconds since the start of the launch, from 1 on: a
  /// number that changes while the wait lasts. Mapped from the host.
  std::uint32_t* waits = nullptr;
  NumberedWord ended = {};           ///< written when all blocks have ended, also early; mapped from the host
  std::byte* arena[kMaxRanks] = {};  ///< of this rank and of those that it sends to or receives from
  /// The transfers, sends first, if they do not fit into `few`: in memory that is mapped from the host.
  const ExchangeTransfer* many = nullptr;
  /// Sends to rank p are the transfers sends[p] to sends[p + 1] - 1, and so for receives.
  std::uint32_t sends[kMaxRanks + 1] = {}, receives[kMaxRanks + 1] = {};
  ExchangeTransfer few[kInline] = {};
};
static_assert(sizeof(ExchangeArgs) <= 4096, "one kernel parameter");

/// The channels of a transfer between `from` and `to`, a bit for each.
std::uint64_t exchange_channels(const ExchangeLayout&, int from, int to, std::uint64_t bytes);

/// The kernel for these arguments and its shape. A message whose length differs from that of its receive ends
/// the launch with ResidentFault::counts, which gives both in bytes. Errors: `invalid` for arguments that
/// break a rule.
Result<Launch> exchange(const ExchangeArgs&);
/// For preloading and for reports.
const Kernel& exchange_kernel();

}  // namespace ouro::gpu
