// The leader's path: the last rank to arrive launches one kernel over the buffers of all ranks, between waits
// of their streams for each other. Used by the GPU executor.
#pragma once
#include <memory>
#include <vector>

#include "kernels/gpu/collect.h"
#include "runtime/exec/gpu/end_word.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/leader_words.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Runs an operation of ranks that share a GPU as one kernel, which the last of them launches for all.
class LeaderPath {
 public:
  /// `topology`: of the team; it is read when operations run.
  LeaderPath(GpuTeam& team, GpuArrivals& arrivals, const GpuTopology& topology)
      : team_(team), arrivals_(arrivals), topology_(topology) {
    before_.reserve(2 * static_cast<std::size_t>(team.size) + 1);
    after_.reserve(static_cast<std::size_t>(team.size) + 1);
  }
  ~LeaderPath();
  LeaderPath(const LeaderPath&) = delete;
  LeaderPath& operator=(const LeaderPath&) = delete;

  /// `in_call`: the call waits, and nothing precedes it. If the calls of all ranks do, one launch serves all.
  Status run(const Plan&, std::uint64_t seq, GpuStream&, bool capturing, bool in_call, OperationEnd* end);
  /// Announces the operation of another path in a call that waits. *led: one launch has served all ranks;
  /// otherwise the path of the operation has to enqueue its part, without another announcement.
  Status offer_call(const Plan&, std::uint64_t seq, GpuStream&, OperationEnd* end, bool* led);
  /// Makes what operations may need whose buffers are parts of these, of at most `bytes`; nullptr: of none.
  /// So they make nothing between waits of the caller's.
  Status make_ready(const void* in, const void* out, std::size_t bytes);
  /// A group of one rank: a copy, or the kernel over its own buffers.
  Status run_alone(const Plan&, GpuStream&);

 private:
  /// Stand-in for a buffer that others cannot map. Kept from operation to operation, which follow each other.
  struct StandIn {
    std::shared_ptr<GpuBlock> block;
    std::uint64_t id = 0;
  };
  /// How others find the buffers of a call.
  struct Buffers {
    GpuRef in, out;
    bool in_stands = false, out_stands = false;  ///< a stand-in is copied to before, and from after
  };
  Status refer(const Plan&, bool capturing, Buffers*);
  /// Maps what other processes named in the operation before, if its calls were alike: a rank that leads for
  /// the first time need not map it then, while all others wait.
  void map_early(const Plan&);
  Status refer(const void* p, std::size_t bytes, bool capturing, StandIn*, GpuRef*, bool* stands_in);
  /// Whether streams meet by kernels. In a capture they do not: a kernel's number would be the same in each
  /// replay.
  bool meets(bool capturing) const { return topology_.concurrent && !capturing; }
  gpu::MeetArgs meeting(const OperationEnd&) const;
  Status lead(const Plan&, const LeaderWords&, GpuStream&, bool capturing, OperationEnd* end);
  Status lead_in_call(const Plan&, int leader, GpuStream&, OperationEnd* end);
  Status lead_by_kernels(gpu::FusedArgs*, const LeaderWords&, GpuStream&, OperationEnd* end);
  Status follow(const LeaderWords&, GpuStream&, bool capturing, OperationEnd* end);
  Status copy(void* to, const void* from, std::size_t bytes, GpuStream&);
  // leader_args.cc
  Status fill(const Plan&, bool capturing, gpu::FusedArgs*);
  Status find_buffers(const Plan&, bool capturing, gpu::FusedArgs*, const std::vector<std::size_t>& in_counts,
                      const std::vector<std::size_t>& out_counts);

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  const GpuTopology& topology_;
  StandIn in_, out_;
  /// Until the group ends: who leads an earlier operation, later than this rank called it, maps them then.
  std::vector<StandIn> outgrown_;
  std::vector<gpu::MemOp> before_, after_;  // of the call at hand; no memory is taken once it is announced
  std::uint64_t last_plan_ = 0, early_plan_ = 0;  // of the operation before; whose buffers are mapped early
  std::uint64_t checked_plan_ = 0;  // its buffers are memory of this device; threads need no more
};

}  // namespace ouro::rt
