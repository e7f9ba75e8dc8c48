// The staged path: down into pinned memory of the host, the host's own operation, up again; large operations
// piece by piece. Used by the GPU executor.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/staged_pieces.h"

namespace ouro::rt {

/// Runs an operation on copies in pinned memory, by the host's executor, in the order of the stream.
class StagedPath {
 public:
  using RunOnHost = StagedPieces::RunOnHost;
  StagedPath(GpuTeam&, GpuPending&);
  ~StagedPath();
  StagedPath(const StagedPath&) = delete;
  StagedPath& operator=(const StagedPath&) = delete;

  /// `on_host` runs the same operation over memory of the host, on a thread of the stream's; or, if it is
  /// given parts of it, these. Then the operation itself has its buffers on the device.
  Status run(const Operation&, const std::shared_ptr<GpuStream>&, RunOnHost on_host,
             std::shared_ptr<WorkState>* work);

  struct Pieces {
    const Operation& op;   ///< of the host's part
    bool reads, writes;    ///< whether this rank does, in it
    bool in_place;         ///< one slot serves for the input and the output of a piece
    const StagedCut& cut;  ///< of the host's part
    PieceMover& mover;
    const Plan* watched;  ///< whose waits on the device the group monitors; or nullptr
    std::uint64_t seq;
    std::size_t room;  ///< of StagedPieces::kRoom
  };
  Status run_in_pieces(const Pieces&, const std::shared_ptr<GpuStream>&, RunOnHost on_host,
                       std::shared_ptr<WorkState>* work);

 private:
  struct Pinned;
  class Copies;
  /// Whether streams may wait for the host here while others run. The same on all ranks.
  bool has_queues();
  Status need(std::size_t bytes, std::unique_ptr<Pinned>*);

  GpuTeam& team_;
  GpuPending& pending_;
  std::unique_ptr<Pinned> in_, out_;
  std::vector<std::unique_ptr<Pinned>> outgrown_;  // operations under way may use them
  std::optional<bool> has_queues_;
  StagedPieces pieces_;  // its streams use the memory above
};

}  // namespace ouro::rt
