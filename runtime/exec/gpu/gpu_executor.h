// The GPU executor: puts operations on device memory into streams. Each path is a class of its own
// (*_path.h). Used by group.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/hierarchy_path.h"
#include "runtime/exec/gpu/leader_path.h"
#include "runtime/exec/gpu/resident_path.h"
#include "runtime/exec/gpu/staged_path.h"
#include "runtime/exec/gpu/stream_path.h"

namespace ouro::rt {

/// Runs a group's operations on device memory, each on its path, and keeps count of the paths.
class GpuExecutor {
 public:
  /// `key` names the group's memory on all ranks.
  GpuExecutor(Context&, const Members&, Waiter&, std::uint64_t key, std::chrono::milliseconds deadline);
  GpuExecutor(const GpuExecutor&) = delete;
  GpuExecutor& operator=(const GpuExecutor&) = delete;

  /// How an operation would run: the same on all ranks that agree on it. See GpuPathChooser.
  Result<GpuPath> path(const Operation& op, const Choice& choice, std::string* why = nullptr) const {
    return chooser_.choose(op, choice, why);
  }
  /// Enqueues; operations of a group run in the order of these calls, on whichever streams. `work` ends with
  /// it. A group's operations are enqueued by one thread at a time. Not for those that
  /// run_with_host_part() takes. `in_call`: the caller waits for the operation, in a stream of the group's
  /// own.
  Status run(const Plan&, GpuPath, std::uint64_t seq, const std::shared_ptr<GpuStream>&, bool in_call,
             std::shared_ptr<WorkState>* work);
  /// The paths `staged` and `hierarchy`, whose part on the host takes the group's turn when the stream has
  /// reached it: the operation itself, or that on shares, by the ranks of equal index on all hosts.
  Status run_with_host_part(const Plan&, GpuPath, std::uint64_t seq, const std::shared_ptr<GpuStream>&,
                            StagedPath::RunOnHost on_host, std::shared_ptr<WorkState>* work);
  /// How many operations have been enqueued on a path.
  std::uint64_t ran(GpuPath p) const {
    return ran_[static_cast<std::size_t>(p)].load(std::memory_order_relaxed);
  }
  /// In how many all ranks' kernels knew this rank's buffers, by the time of its call.
  std::uint64_t named() const { return resident_.named(); }

  // Thread-safe.
  /// Operations under way.
  GpuPending& pending() { return pending_; }
  /// What a kernel of this rank has found out and the group does not know yet.
  std::optional<Failure> kernels_fault();

 private:
  /// That the buffers of a call are memory of this rank's GPU; asked once for calls that are alike.
  Status check_buffers(const Operation&, std::uint64_t plan);
  void count(GpuPath p) { ran_[static_cast<std::size_t>(p)].fetch_add(1, std::memory_order_relaxed); }

  // In the order in which they rely on each other.
  GpuTeam team_;
  const std::unique_ptr<const Members> host_members_;  // those of this host, where there are others
  GpuTeam here_;                                       // they, or all
  GpuPathChooser chooser_, here_chooser_;
  GpuArrivals arrivals_;
  ResidentPath resident_;
  GpuPending pending_;
  LeaderPath leader_;
  StreamPath stream_;
  StagedPath staged_;
  HierarchyPath hierarchy_;
  std::uint64_t checked_plan_ = 0;
  std::array<std::atomic<std::uint64_t>, kGpuPaths> ran_{};
};

}  // namespace ouro::rt
