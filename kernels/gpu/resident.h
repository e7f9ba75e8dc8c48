// The resident executor's kernels: one launch a rank carries a flow out with loads, stores and flags in
// memory that all ranks map. Plain interface of host code; used by the resident executor and by tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/flow/list.h"
#include "kernels/gpu/collect.h"
#include "kernels/gpu/resident_ref.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::gpu {

/// How large the parts of an arena are. All ranks of a group use the same.
struct ResidentSizes {
  int ranks = 1;
  int channels = 8;                         ///< blocks of a launch, at most
  int slots = 4;                            ///< of a link: a power of two; two suffice for every flow
  std::uint64_t slot_bytes = 64 << 10;      ///< payload; a multiple of 128, at least 2 KiB
  std::uint64_t staging_bytes = 256 << 10;  ///< of a staging buffer; a multiple of 128, at least 128 a rank
  std::uint64_t packet_bytes = 16 << 10;    ///< payload of one channel by packets; a multiple of 128
};

/// Where things lie in an arena: the memory of one rank, on its device, that all ranks of the group map, and
/// that is all zero before the first launch. It has a header and then one part a channel. A part begins with
/// the state that outlives a launch, so that a captured launch can be replayed. Then, each indexed by the
/// peer that writes it (a line of 128 bytes a peer): `full` (a word a slot) and `slots` of the link from it,
/// `freed` of the link to it, `arrival records` (its posts), `names` (where its buffers lie) and `done` (the
/// rounds it has released); then this rank's own `staging` slots that all read, packets from each peer (two
/// parities), and private scratch. Behind the channels lies the table of what this rank has mapped:
/// ResidentRef::kListed a peer. There is a link for each ordered pair: with n ranks one channel takes about
///   n (slots slot_bytes + 4 packet_bytes + 640) + 4 staging_bytes + max(p slot_bytes, n packet_bytes)
/// bytes, p the largest power of two up to n: 3.7 MiB for 8 ranks with the defaults above.
struct ResidentLayout {
  static constexpr int kMaxRanks = 64, kMaxChannels = 64, kMaxSlots = 16;
  static constexpr int kStagingSlots = 4;  ///< as on the host: flows are proved with this depth
  static constexpr std::uint64_t kLine = 128;
  static constexpr std::uint64_t kHeaderBytes = kLine;  ///< the word that says that this rank has failed
  int ranks = 0, channels = 0, slots = 0;
  std::uint64_t slot_bytes = 0, staging_bytes = 0, packet_bytes = 0;
  /// Offsets within the part of a channel.
  std::uint64_t full_at = 0, freed_at = 0, arrivals_at = 0, names_at = 0, done_at = 0, slots_at = 0,
                pages_at = 0, packets_at = 0, scratch_at = 0;
  std::uint64_t channel_bytes = 0;
  /// Of the packets from one rank: eight bytes each in sixteen, and a few that say what they belong to.
  constexpr std::uint64_t packet_set_bytes() const { return 2 * packet_bytes + kLine; }
  constexpr std::uint64_t mapped_at() const {
    return kHeaderBytes + static_cast<std::uint64_t>(channels) * channel_bytes;
  }
  std::uint64_t bytes() const {
    return mapped_at() + static_cast<std::uint64_t>(ranks) * ResidentRef::kListed * sizeof(ResidentMapping);
  }
};
/// `invalid` where a size breaks a rule above.
Result<ResidentLayout> resident_layout(const ResidentSizes&);

/// Why a launch ended early.
enum class ResidentFault : std::uint32_t {
  none,
  deadline,   ///< `peer` did not come within deadline_ns
  aborted,    ///< the abort word was raised while waiting for `peer`
  mismatch,   ///< `peer` is in another operation: its tag differs
  reference,  ///< `peer` names a buffer that does not lie within what this rank has mapped of its memory
};

/// What a launch leaves in pinned host memory when it ends early; the first block of a rank that fails writes
/// it, `fault` last (release). The arena is of no use from then on: later launches leave at once, their
/// outputs untouched.
struct alignas(64) ResidentError {
  ResidentFault fault;
  std::int32_t peer;   ///< whom the block was waiting for
  std::uint32_t step;  ///< how many steps of the flow this rank had begun
  std::int32_t channel;
};

/// One rank's part of one collective. Blocks are even; `channels`, like all that is not this rank's own, is
/// the same on all ranks. The data is split among channels at multiples of 128 bytes of the region, or of
/// each block.
struct ResidentArgs {
  static constexpr int kMaxRanks = ResidentLayout::kMaxRanks;
  Collective collective = Collective::none;
  flow::Algorithm algorithm = flow::Algorithm::ring;
  DType dtype = DType::f32;  ///< of movement only its size counts
  OpKind op = OpKind::sum;
  /// All ranks run in one process on one device: flags need not reach further than the device.
  bool one_device = false;
  /// all_reduce by oneshot: data and flags travel in the same 16 bytes, with one hop and half the bandwidth.
  bool packets = false;
  std::uint16_t tag = 0;  ///< of the operation's signature: ranks that disagree find out at their first chunk
  int rank = 0, root = 0, channels = 1;
  std::uint64_t count = 0;  ///< elements of the region, or of one block
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  Scalar premul = {};             ///< premulsum only
  std::uint64_t deadline_ns = 0;  ///< from the start of the launch; not 0
  /// Leave when it is not 0. In memory of the device, or mapped from the host.
  const std::uint32_t* abort = nullptr;
  ResidentError* error = nullptr;  ///< mapped from the host
  ResidentLayout layout = {};
  std::byte* arena[kMaxRanks] = {};  ///< of all ranks
  /// zerocopy only: the buffers of all ranks, where flow::zero_copy_buffers says that others touch them.
  const std::byte* in_of[kMaxRanks] = {};
  std::byte* out_of[kMaxRanks] = {};
  /// Ranks tell each other where their buffers lie. Where every rank names them, the flow is `zerocopy`, on
  /// those; else `algorithm`. The same on all ranks.
  bool by_pointer = false;
  /// By pointer: this rank's buffers, or kNone in `in_ref`; of a buffer that nobody else touches anything
  /// else.
  std::uint64_t in_ref = ResidentRef::kNone, out_ref = ResidentRef::kNone;
  /// nvls only: staging of switched_bytes() at the multicast address, and this rank's own part of it.
  std::byte* multicast = nullptr;
  std::byte* switched = nullptr;
  /// What this rank has mapped since its last launch: peers may name it from the next operation on.
  static constexpr int kLearn = 24;
  int learned = 0;
  ResidentEntry learn[kLearn] = {};
};
static_assert(sizeof(ResidentArgs) <= 4096, "one kernel parameter");

/// Staging behind a multicast address, of each rank: as many slots as staging buffers have, and as large.
constexpr std::uint64_t switched_bytes(const ResidentLayout& l) {
  return static_cast<std::uint64_t>(l.channels) * ResidentLayout::kStagingSlots * l.staging_bytes;
}
/// Whether a switch carries out an operation by nvls: the reductions that multimem.h lists, and movement.
bool has_switched(Collective, DType, OpKind);
/// Whether what this device would run of these kernels was compiled for sm_90 at least, which have multimem.
bool compiled_for_switches(int device);

/// Channels that are worth their flags for this many bytes of a region or block, at most those of the layout:
/// a packet a thread, or 16 KiB.
int resident_channels(const ResidentLayout&, std::uint64_t bytes, bool packets);

/// Whether resident kernels carry out an algorithm of a collective with what a rank knows by itself: not by
/// zerocopy, which needs the buffers of all ranks.
bool has_resident(Collective, flow::Algorithm);

/// The largest region, in bytes, that all_reduce can carry by packets over so many channels.
std::uint64_t resident_packet_limit(const ResidentLayout&, int channels);

/// The kernel for these arguments and its shape: a block a channel. Buffers at any address; in place
/// exactly or not at all (gather and scatter: the root's own block may also lie where block 0 does).
/// Reductions of flows that are canonical have the bits of kernels::fold. Errors: `unsupported` for line and
/// pull flows, for an algorithm that the collective lacks and for more elements than a launch can number;
/// `invalid` for arguments that break a rule.
Result<Launch> resident(const ResidentArgs&);

inline constexpr int kResidentThreads = 512;  ///< of a block, at most: what the registers are planned for
/// For preloading and for reports.
std::span<const Kernel* const> resident_kernels();

}  // namespace ouro::gpu
