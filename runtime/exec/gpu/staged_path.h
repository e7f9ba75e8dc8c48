// The staged path: down into pinned memory of the host, the host's own operation, up again. Used by the GPU
// executor.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

/// Runs an operation on copies in pinned memory, by the host's executor, in the order of the stream.
class StagedPath {
 public:
  using RunOnHost = std::function<Status(const Operation&)>;
  StagedPath(GpuTeam&, GpuPending&);
  ~StagedPath();
  StagedPath(const StagedPath&) = delete;
  StagedPath& operator=(const StagedPath&) = delete;

  /// `on_host` runs the same operation over memory of the host, on a thread of the stream's.
  Status run(const Operation&, const std::shared_ptr<GpuStream>&, RunOnHost on_host,
             std::shared_ptr<WorkState>* work);

 private:
  struct Pinned;
  Status need(std::size_t bytes, std::unique_ptr<Pinned>*);

  GpuTeam& team_;
  GpuPending& pending_;
  std::unique_ptr<Pinned> in_, out_;
  std::vector<std::unique_ptr<Pinned>> outgrown_;  // operations under way may use them
};

}  // namespace ouro::rt
