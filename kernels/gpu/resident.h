// The resident executor's kernels: one launch per rank executes a whole flow with loads, stores and flags in
// memory that all ranks map. Interface for host code; used by the resident executor and by tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/flow/list.h"
#include "kernels/gpu/collect.h"
#include "kernels/gpu/launch_end.h"
#include "kernels/gpu/resident_ref.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::gpu {

/// Sizes of the parts of an arena. All ranks of a group use the same.
struct ResidentSizes {
  int ranks = 1;
  int channels = 8;                         ///< blocks of a launch, at most
  int slots = 4;                            ///< per link: a power of two; two suffice for every flow
  std::uint64_t slot_bytes = 64 << 10;      ///< payload of a slot; a multiple of 128, at least 2 KiB
  std::uint64_t staging_bytes = 256 << 10;  ///< per staging slot; a multiple of 128, at least 128 per rank
  std::uint64_t packet_bytes = 16 << 10;    ///< payload of one channel by packets; a multiple of 128
};

/// The layout of an arena: the memory of one rank, on its device, that all ranks of the group map, and that
/// is all zero before the first launch. It has a header and then one part per channel. A part begins with the
/// state that outlives a launch, so that a captured launch can be replayed. Then come, each indexed by the
/// peer that writes it (a line of 128 bytes per peer): `full` (a word per slot) and `slots` of the link from
/// the peer, `freed` of the link to it, `arrival records` (its posts), `names` (where its buffers are) and
/// `done` (the rounds it has released); then this rank's own `staging` slots that all read, packets from each
/// peer (two parities), and private scratch. After the channels comes the table of this rank's mappings:
/// ResidentRef::kListed per peer. There is a link for each ordered pair: with n ranks one channel takes about
///   n (slots slot_bytes + 4 packet_bytes + 640) + 4 staging_bytes + max(p slot_bytes, n packet_bytes)
/// bytes, where p is the largest power of two up to n: 3.7 MiB for 8 ranks with the defaults above.
struct ResidentLayout {
  static constexpr int kMaxRanks = 64, kMaxChannels = 64, kMaxSlots = 16;
  static constexpr int kStagingSlots = 4;  ///< as on the host: flows are proved for this depth
  static constexpr std::uint64_t kLine = 128;
  /// The word that is set when this rank has failed, and at kEndedAt one that counts the blocks of a launch
  /// that have ended.
  static constexpr std::uint64_t kHeaderBytes = kLine, kEndedAt = 64;
  int ranks = 0, channels = 0, slots = 0;
  std::uint64_t slot_bytes = 0, staging_bytes = 0, packet_bytes = 0;
  /// Offsets within the part of a channel.
  std::uint64_t full_at = 0, freed_at = 0, arrivals_at = 0, names_at = 0, done_at = 0, slots_at = 0,
                pages_at = 0, packets_at = 0, scratch_at = 0;
  std::uint64_t channel_bytes = 0;
  /// Bytes of the packets from one rank: each packet of 16 bytes carries eight of payload, and a few more
  /// carry the operation's tag and factor.
  constexpr std::uint64_t packet_set_bytes() const { return 2 * packet_bytes + kLine; }
  constexpr std::uint64_t mapped_at() const {
    return kHeaderBytes + static_cast<std::uint64_t>(channels) * channel_bytes;
  }
  std::uint64_t bytes() const {
    return mapped_at() + static_cast<std::uint64_t>(ranks) * ResidentRef::kListed * sizeof(ResidentMapping);
  }
};
/// Fails with `invalid` if a size breaks a rule above.
Result<ResidentLayout> resident_layout(const ResidentSizes&);

/// Why a launch ended early.
enum class ResidentFault : std::uint32_t {
  none,
  deadline,   ///< `peer` did not arrive within deadline_ns
  aborted,    ///< the abort word was set while waiting for `peer`
  mismatch,   ///< `peer` is in another operation: its tag differs
  reference,  ///< `peer` names a buffer outside what this rank has mapped of its memory
  counts,     ///< uneven all_to_all: `peer` sends another number of elements than this rank expects
};

/// The record that a launch leaves in pinned host memory when it ends early. The first block of a rank that
/// fails writes it, `fault` last (release). The arena is unusable from then on: later launches return at once
/// and leave their outputs untouched.
struct alignas(64) ResidentError {
  ResidentFault fault;
  std::int32_t peer;   ///< the rank that the block was waiting for
  std::uint32_t step;  ///< number of steps of the flow that this rank had begun
  std::int32_t channel;
  std::uint64_t sent, expected;  ///< `counts` only: elements
};

/// One rank's part of one collective. `channels`, like everything that is not specific to this rank, must be
/// the same on all ranks. The data is split among channels at multiples of 128 bytes of the region, or of
/// each block, so every block of a launch has a share of what each peer sends to this rank.
struct ResidentArgs {
  static constexpr int kMaxRanks = ResidentLayout::kMaxRanks;
  Collective collective = Collective::none;
  flow::Algorithm algorithm = flow::Algorithm::ring;
  DType dtype = DType::f32;  ///< only its size matters for movement
  OpKind op = OpKind::sum;
  /// All ranks run in one process on one device: device scope suffices for flags.
  bool one_device = false;
  /// all_reduce by oneshot: data and flags are in the same 16 bytes, with one hop and half the bandwidth.
  bool packets = false;
  std::uint16_t tag =
      0;  ///< from the operation's signature: ranks that disagree detect it at their first chunk
  int rank = 0, root = 0, channels = 1;
  std::uint64_t count = 0;  ///< elements of the region, of one block, or of the longest uneven block
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  Scalar premul = {};             ///< premulsum only
  std::uint64_t deadline_ns = 0;  ///< from the start of the launch; not 0
  /// The launch ends early when this word is not 0. The word is in memory of the device, or mapped
  /// from the host.
  const std::uint32_t* abort = nullptr;
  ResidentError* error = nullptr;  ///< mapped from the host
  ResidentLayout layout = {};
  std::byte* arena[kMaxRanks] = {};  ///< the arenas of all ranks
  /// zerocopy only: the buffers of all ranks, those that other ranks access according
  /// to flow::zero_copy_buffers.
  const std::byte* in_of[kMaxRanks] = {};
  std::byte* out_of[kMaxRanks] = {};
  /// Ranks exchange where their buffers are. If every rank names them, the kernel runs the flow `zerocopy` on
  /// those buffers, otherwise `algorithm`. Must be the same on all ranks.
  bool by_pointer = false;
  /// For by_pointer: this rank's buffers, or kNone in `in_ref`. The value for a buffer that no other rank
  /// accesses is arbitrary.
  std::uint64_t in_ref = ResidentRef::kNone, out_ref = ResidentRef::kNone;
  /// nvls only: staging of switched_bytes() at the multicast address, and this rank's own memory behind it.
  std::byte* multicast = nullptr;
  std::byte* switched = nullptr;
  /// Mappings that this rank has made since its last launch: peers may name them from the next operation on.
  static constexpr int kLearn = 24;
  int learned = 0;
  ResidentEntry learn[kLearn] = {};
  /// Blocks have lengths of their own: the number of elements of each block of the input and of the output.
  /// The two lists of an all_to_all are this rank's own, and ranks compare them in meet(). An all_gather or
  /// reduce_scatter has one list for both, which is the same on all ranks. The flow over slots is `pairwise`
  /// for an all_to_all, which always sets by_pointer, and `direct` for the others.
  bool uneven = false;
  std::uint64_t in_counts[kMaxRanks] = {}, out_counts[kMaxRanks] = {};
  NumberedWord ended = {};  ///< pinned: written when all blocks have ended, however they ended
};
static_assert(sizeof(ResidentArgs) <= 4096, "one kernel parameter");

/// Bytes of staging behind a multicast address, for each rank: as many slots as a staging buffer has, of
/// the same size.
constexpr std::uint64_t switched_bytes(const ResidentLayout& l) {
  return static_cast<std::uint64_t>(l.channels) * ResidentLayout::kStagingSlots * l.staging_bytes;
}
/// Whether a switch can execute an operation by nvls: the reductions that multimem.h lists, and movement.
bool has_switched(Collective, DType, OpKind);
/// Whether the code of these kernels for this device was compiled for sm_90 or later, which has multimem.
bool compiled_for_switches(int device);

/// Channels that pay for their flags with this many bytes of a region or block, at most those of the layout.
/// A channel should have one packet per thread, or 16 KiB.
int resident_channels(const ResidentLayout&, std::uint64_t bytes, bool packets);

/// Whether resident kernels can run an algorithm of a collective with the data of one rank alone. False for
/// zerocopy, which needs the buffers of all ranks.
bool has_resident(Collective, flow::Algorithm);
/// Whether resident kernels can run the collective with uneven blocks.
bool has_resident_uneven(Collective);
/// The flow over slots of an uneven operation.
flow::Algorithm uneven_over_slots(Collective);

/// The largest region, in bytes, that all_reduce can move by packets over this many channels.
std::uint64_t resident_packet_limit(const ResidentLayout&, int channels);

/// The kernel for these arguments and its shape: one block per channel. Buffers may have any address; they
/// are either exactly in place or do not overlap (gather and scatter: the root's own block may also be at the
/// place of block 0). Reductions of canonical flows have the bits of kernels::fold. Errors: `unsupported` for
/// inline and pull flows, for an algorithm that the collective lacks and for more elements than a launch can
/// number; `invalid` for arguments that break a rule.
Result<Launch> resident(const ResidentArgs&);

inline constexpr int kResidentThreads =
    512;  ///< threads of a block, at most: register use is planned for this
/// All resident kernels, for preloading and for reports.
std::span<const Kernel* const> resident_kernels();

}  // namespace ouro::gpu
