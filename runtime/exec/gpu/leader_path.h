// The leader's path: the last rank to arrive launches one kernel over the buffers of all ranks, between waits
// for their words. Used by the GPU executor.
#pragma once
#include <memory>
#include <vector>

#include "kernels/gpu/collect.h"
#include "runtime/exec/gpu/fan_in.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/leader_words.h"
#include "runtime/exec/gpu/side_stream.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Runs an operation of ranks that share a GPU as one kernel, which the last of them launches for all.
class LeaderPath {
 public:
  LeaderPath(GpuTeam& team, GpuArrivals& arrivals) : team_(team), arrivals_(arrivals) {
    before_.reserve(2 * static_cast<std::size_t>(team.size) + 1);
    after_.reserve(static_cast<std::size_t>(team.size) + 1);
  }
  ~LeaderPath();
  LeaderPath(const LeaderPath&) = delete;
  LeaderPath& operator=(const LeaderPath&) = delete;

  Status run(const Plan&, std::uint64_t seq, GpuStream&, bool capturing);
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
  Status refer(const Operation&, bool capturing, Buffers*);
  Status refer(const void* p, std::size_t bytes, bool capturing, StandIn*, GpuRef*, bool* stands_in);
  Status prepare();  ///< what lead() may need: it makes nothing, while the others' streams wait
  Status open_words();
  /// Whether events say that the streams of all ranks have reached an operation.
  bool by_events(bool capturing) const { return fan_in_ && !capturing; }
  Status lead(const Plan&, const LeaderWords&, GpuStream&, const gpu::Stream& on, bool capturing);
  Status gather(const LeaderWords&, std::uint64_t operation, GpuStream&, const gpu::Stream& on,
                bool capturing);
  Status follow(const LeaderWords&, GpuStream&);
  Status copy(void* to, const void* from, std::size_t bytes, GpuStream&);
  // leader_args.cc
  Status fill(const Plan&, bool capturing, gpu::FusedArgs*);
  Status find_buffers(const Plan&, bool capturing, gpu::FusedArgs*, const std::vector<std::size_t>& in_counts,
                      const std::vector<std::size_t>& out_counts);

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  StandIn in_, out_;
  /// Until the group ends: who leads an earlier operation, later than this rank called it, maps them then.
  std::vector<StandIn> outgrown_;
  std::vector<gpu::MemOp> before_, after_;  // of the call at hand; no memory is taken once it is announced
  std::shared_ptr<FanIn> fan_in_;           // where all ranks share a process
  SideStream launches_{team_.device, 1};  // where ranks that share a process launch; the stream is fan_in_'s
};

}  // namespace ouro::rt
