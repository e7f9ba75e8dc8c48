// The resident path: each rank launches a kernel that carries a flow out by itself, over memory and flags
// that all ranks map. It spins, so all ranks' blocks must be able to run at the same time. Used by the
// GPU executor.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/gpu/resident.h"
#include "runtime/device_memory/export_listing.h"
#include "runtime/device_memory/gpu_multicast.h"
#include "runtime/exec/gpu/end_word.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

/// The memory that resident kernels of a group share, and the words by which they and the host speak.
struct ResidentArena {
  gpu::ResidentLayout layout;
  std::vector<std::byte*> arena;        ///< by rank
  std::shared_ptr<void> pinned;         ///< of the pool: nothing is unpinned while others may spin
  gpu::ResidentError* error = nullptr;  ///< pinned
  std::uint32_t* abort = nullptr;       ///< pinned, a line further

  /// What a kernel of this rank has found out; `none` while the rest may be being written.
  gpu::ResidentFault fault() const;
  bool faulted() const { return fault() != gpu::ResidentFault::none; }
};

/// How large the arenas of a group are. `packets`: those of ranks that use them for packets only.
gpu::ResidentSizes resident_sizes(int ranks, int channels, bool packets = false);

/// Elements of the region, or of one block; if blocks are uneven, of the longest block of this rank.
std::uint64_t resident_count(const Operation&, int rank, int size);

/// The flow over slots for an operation of so many bytes of a region or block that names none.
flow::Algorithm resident_algorithm(const Operation&, std::size_t bytes);

/// Whether the flow for an operation of so many bytes that names none is one by packets.
bool resident_in_packets(const Operation&, std::size_t bytes);

/// Whether ranks offer each other their buffers for such an operation: then its flow is `zerocopy` where
/// every rank reaches all of them, and elsewhere `direct` (of an uneven all_to_all `pairwise`), with
/// the same bits.
bool resident_by_pointer(const Operation&, std::size_t bytes);

/// Launches, for each operation, this rank's kernel that carries out the flow together with those of
/// the others.
class ResidentPath {
 public:
  ResidentPath(GpuTeam& team, GpuArrivals& arrivals, const GpuTopology& topology)
      : team_(team),
        arrivals_(arrivals),
        topology_(topology),
        listing_(team.context.device_memory(), team.rank, team.members.world_ranks(), team.device) {}
  ~ResidentPath();
  ResidentPath(const ResidentPath&) = delete;
  ResidentPath& operator=(const ResidentPath&) = delete;

  /// `announced`: the operation is, by LeaderPath::offer_call.
  Status run(const Plan&, std::uint64_t seq, GpuStream&, bool capturing, bool announced, OperationEnd* end);
  /// Makes what operations may need.
  Status make_ready();
  /// Null before the first operation.
  const std::shared_ptr<ResidentArena>& arena() const { return arena_; }

  /// In how many operations all other ranks' kernels knew this rank's buffers.
  std::uint64_t named() const { return named_; }

  // Thread-safe.
  /// Ends kernels that wait for a peer.
  void abort();
  /// What a kernel of this rank has found out and the group does not know yet.
  std::optional<Failure> fault();

 private:
  Status open();
  Status open_listing();
  /// Staging behind a multicast address, once; what has failed fails again, on all ranks alike.
  Status open_switch();
  /// Copies the lengths of uneven blocks into the arguments of a launch.
  static void lay_out_blocks(const Operation&, gpu::ResidentArgs*);
  Status name_buffers(const Operation&, std::uint64_t seq, bool capturing, gpu::ResidentArgs*);

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  const GpuTopology& topology_;
  ExportListing listing_;
  std::uint64_t named_ = 0;
  std::shared_ptr<GpuMulticast> multicast_;
  std::mutex mutex_;  // while arena_ is being set
  std::shared_ptr<ResidentArena> arena_;
};

}  // namespace ouro::rt
