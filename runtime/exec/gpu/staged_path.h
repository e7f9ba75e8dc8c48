// The staged path: down into pinned memory of the host, the host's own operation, up again. Used by the GPU
// executor.
#pragma once
#include <functional>
#include <memory>

#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

/// Runs an operation on copies in pinned memory, by the host's executor, in the order of the stream.
class StagedPath {
 public:
  using RunOnHost = std::function<Status(const Operation&)>;
  StagedPath(GpuTeam& team, GpuPending& pending) : team_(team), pending_(pending) {}

  /// `on_host` runs the same operation over memory of the host, on a thread of the stream's.
  Status run(const Operation&, const std::shared_ptr<GpuStream>&, RunOnHost on_host,
             std::shared_ptr<WorkState>* work);

 private:
  struct Pinned;
  Status need(std::size_t bytes, std::shared_ptr<Pinned>*);

  GpuTeam& team_;
  GpuPending& pending_;
  std::shared_ptr<Pinned> in_, out_;
};

}  // namespace ouro::rt
