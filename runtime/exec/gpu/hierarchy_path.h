// The hierarchy path: several hosts, whose GPUs do the part within each host; the rest is sent through
// the host, each rank with its share. Used by the GPU executor.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/leader_path.h"
#include "runtime/exec/gpu/resident_path.h"
#include "runtime/exec/gpu/staged_path.h"

namespace ouro::rt {

struct HierarchyCut;

/// Of each piece: ranks of a host reduce it, or leave it as it is, so that each has a share; shares go down,
/// between hosts and up; the ranks of a host gather them. The part within a host is the leader's kernel or
/// resident ones, in the caller's stream. The share between hosts is an operation of the ranks of equal index
/// on all hosts.
class HierarchyPath {
 public:
  /// `team`: all ranks. `here`: those of this host, whose paths are the others, chosen by `chooser`.
  HierarchyPath(GpuTeam& team, GpuTeam& here, const GpuPathChooser& chooser, LeaderPath& leader,
                ResidentPath& resident, StagedPath& staged)
      : team_(team), here_(here), chooser_(chooser), leader_(leader), resident_(resident), staged_(staged) {}
  ~HierarchyPath();
  HierarchyPath(const HierarchyPath&) = delete;
  HierarchyPath& operator=(const HierarchyPath&) = delete;

  /// `between` runs the operation on shares that it is given, in parts, on a thread of the stream's.
  Status run(const Plan&, std::uint64_t seq, const std::shared_ptr<GpuStream>&, StagedPath::RunOnHost between,
             std::shared_ptr<WorkState>* work);

 private:
  class Mover;
  /// Device memory, kept from operation to operation, that other ranks of the host can map.
  struct Scratch {
    std::shared_ptr<GpuBlock> block;
    std::uint64_t id = 0;
    std::byte* data() const { return block ? block->data() : nullptr; }
  };
  Status need(std::size_t bytes, Scratch*);
  void drop(Scratch*);
  /// Makes what the operations within the host need, before the first of them is in a stream.
  Status make_ready(const Operation&, const HierarchyCut&);
  /// An operation of the ranks of this host; `tag` distinguishes those of a call.
  Status within(const Plan& whole, std::uint64_t tag, const Operation&, GpuStream&);

  GpuTeam& team_;
  GpuTeam& here_;
  const GpuPathChooser& chooser_;
  LeaderPath& leader_;
  ResidentPath& resident_;
  StagedPath& staged_;
  std::uint64_t number_ = 0;  // of the operations within the host
  // Shares of the pieces in slots of the host; a piece, wide or with its blocks in the order of owners; a
  // share that is finished. Only the first is in use beside the stream of a call.
  Scratch shares_, piece_, finished_;
  /// Until the group ends: who leads an earlier operation, later than this rank called it, maps them then.
  std::vector<Scratch> outgrown_;
};

}  // namespace ouro::rt
