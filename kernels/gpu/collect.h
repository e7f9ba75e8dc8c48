// The kernels that move and reduce data of collectives: fused (one launch serves all ranks that share a
// GPU) and hop (one step of a flow); one by which ranks that share a GPU meet; and one that collects the
// parts of a message that have arrived. Used by the leader and the stream-ordered executors, and by messages.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/gpu.h"
#include "kernels/gpu/launch_end.h"
#include "runtime/core/types.h"

namespace ouro::gpu {

/// One collective over the buffers of all ranks, in one launch: 2NS bytes for an all-reduce of N ranks.
struct FusedArgs {
  static constexpr int kMaxRanks = 32;       ///< with more ranks, another executor runs the operation
  static constexpr int kMaxUnevenPairs = 8;  ///< ranks of an uneven all-to-all
  Collective collective = Collective::none;
  DType dtype = DType::f32;  ///< only its size matters for movement
  OpKind op = OpKind::sum;
  int ranks = 1, root = 0;
  bool uneven = false;
  std::uint64_t count = 0;  ///< elements of the region, or of one block; 0 if uneven
  /// If set, a word of device memory: a launch that finds it non-zero accesses no buffer.
  const std::uint32_t* stop = nullptr;
  const std::byte* in[kMaxRanks] = {};  ///< nullptr if a rank's input is not read
  std::byte* out[kMaxRanks] = {};       ///< nullptr if a rank's output is not written
  Scalar premul[kMaxRanks] = {};        ///< premulsum only
  /// Uneven all_gather and reduce_scatter: [b] is the number of elements before block b, and
  /// [ranks] the total.
  std::uint64_t offsets[kMaxRanks + 1] = {};
  /// Uneven all_to_all: [r][p] is the number of elements before those that rank r sends to p, or
  /// receives from p.
  std::uint64_t send_offsets[kMaxUnevenPairs][kMaxUnevenPairs + 1] = {};
  std::uint64_t recv_offsets[kMaxUnevenPairs][kMaxUnevenPairs + 1] = {};
  LaunchEnd end = {};  ///< what is written when all buffers are; nothing, where the stream does that
};
static_assert(sizeof(FusedArgs) <= 4096);

/// The kernel for given arguments, and its shape on a device with `multiprocessors` multiprocessors. Buffers
/// may have any alignment; each rank's are either exactly in place or do not overlap. Reductions fold all
/// ranks in rank order, in registers, and round once: the canonical bits, equal to kernels::fold on the host.
struct Launch {
  const Kernel* kernel;  ///< nullptr: nothing to launch (a barrier, no elements, no destination)
  Shape shape;
};
Launch fused(const FusedArgs&, int multiprocessors);

/// A stream's wait for the streams of other ranks, where kernels of all of them run at the same time: writes
/// that this stream has arrived, and waits until words hold at least `number`, cyclically. Unlike a wait of
/// the stream itself it has a deadline; after it, `stop` is set, so that later launches touch nothing.
struct MeetArgs {
  NumberedWord arrived = {};               ///< written first
  const std::uint32_t* awaited = nullptr;  ///< the first of `words`, which are `stride` words apart
  std::uint64_t stride = 1;
  int words = 0, skip = -1;  ///< the index of a word that is not awaited, or -1
  std::uint32_t number = 0;
  std::uint64_t deadline_ns = 0;  ///< from the start of the launch
  std::uint32_t* stop = nullptr;  ///< FusedArgs::stop
  std::uint32_t* late = nullptr;  ///< pinned: set to 1 when the deadline has passed, before end.ended
  LaunchEnd end = {};             ///< of one block
};
Launch meet();

/// One step of a flow over one chunk: value = [weight *] incoming (+) mine, or the one of the two that is
/// set; the value is written to every destination that is set. Wide: an array of the accumulation type
/// (kernels::accumulator_bytes per element); narrow: of dtype. A value of narrow sources only, neither
/// reduced nor widened, is copied bit for bit (`op` is ignored unless something is wide or reduced).
struct HopArgs {
  DType dtype = DType::f32;
  OpKind op = OpKind::sum;
  int ranks = 1;  ///< avg divides by it when a wide value becomes narrow
  bool incoming_wide = false, mine_wide = false, send_wide = false;
  Scalar premul = {};  ///< factor of `mine` if that is an input (narrow) and is widened; premulsum only
  double weight = 1;
  std::uint64_t count = 0;
  const std::uint32_t* stop = nullptr;  ///< as in FusedArgs
  const std::byte* incoming = nullptr;
  const std::byte* mine = nullptr;
  std::byte* store = nullptr;  ///< destination: narrow, finished
  std::byte* keep = nullptr;   ///< destination: wide
  std::byte* send = nullptr;   ///< destination: wide, or narrow and finished
};
Launch hop(const HopArgs&, int multiprocessors);

/// Bytes that have arrived somewhere, and where they belong: `at` bytes into the destination.
struct Run {
  const std::byte* from = nullptr;
  std::uint64_t at = 0, bytes = 0;
};

/// Copies the runs that are listed when the kernel begins, wherever they are then: a message that has partly
/// been received on the device and partly on the host. `count` and `runs` are in pinned memory, which the
/// host has written before the stream continues.
struct GatherArgs {
  const std::uint64_t* count = nullptr;
  const Run* runs = nullptr;
  std::byte* to = nullptr;
};
/// `bytes`: the most that the runs may have; it decides the shape only.
Launch gather_runs(std::uint64_t bytes, int multiprocessors);

/// The kernels of this file.
std::span<const Kernel* const> collect_kernels();
/// All kernels of this file and of the other kernels/gpu files, for preloading and for reports.
std::span<const Kernel* const> all_kernels();
/// Loads all of them on a device and reserves the stack that they need, once per process. A driver that does
/// so at the first launch of a kernel may wait for running work, which may in turn wait for that launch.
/// Kernels that only other devices have are skipped. Errors: unsupported (the build has no code for this
/// device), those of Gpu::info and Gpu::reserve_stack.
Status load_kernels(int device);

}  // namespace ouro::gpu
