// GpuOperations: operations on the memory of this rank's GPU. Used by Group.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/exec/gpu/gpu_executor.h"
#include "runtime/group/host_operations.h"
#include "runtime/group/inner_group.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Puts a group's operations on device memory into streams: finds the path, takes the turn, and
/// monitors what is in flight. The executor is made on first use.
class GpuOperations final : public DeviceObserver {
 public:
  GpuOperations(Context& context, const Members& members, std::uint64_t key, const Planner& planner,
                Sequencer& sequencer, FailureDetector& detector, OperationWaiter& waiter,
                HostOperations& host, MakeInnerGroup make_inner);
  ~GpuOperations();
  GpuOperations(const GpuOperations&) = delete;
  GpuOperations& operator=(const GpuOperations&) = delete;

  /// Checks that a call's buffers and stream are those of this rank's GPU. Errors: invalid.
  Status check(const Operation&, Stream*) const;
  /// Enqueues an operation in `stream`, or (nullptr) in the group's own; `wait`: returns when it has ended.
  /// *work, unless `work` is null, ends with the operation. `kept`: the plan that the thread has kept for
  /// such a call, or nullptr.
  Status submit(const Operation&, const Plan* kept, GpuStream* stream, std::shared_ptr<WorkState>* work,
                bool wait);
  /// The same in the order of a host stream, which waits for the operation. Takes the ticket in this call.
  Status submit(const Operation&, Stream& host, std::shared_ptr<WorkState>* work);
  Result<std::string> explain(const Operation&);
  /// The group's own stream of this rank's GPU, for work that was given none. Errors: invalid (there is no
  /// GPU), resource.
  Result<std::shared_ptr<GpuStream>> own_stream();
  /// The number of operations that this rank has enqueued on a path.
  std::uint64_t ran(GpuPath);
  /// In how many of them the kernels of all ranks knew this rank's buffers by the time of its call.
  std::uint64_t named();

  bool idle();
  /// Returns when all operations have ended.
  void drain();
  /// Called after drain(): no operation follows.
  void leave();
  /// Called periodically by the watch thread, which monitors what the streams wait for.
  void poll_device() override;

 private:
  GpuExecutor& executor();
  GpuExecutor* made();  ///< or nullptr, before the first use
  struct IntoStream;
  struct BetweenHosts;
  /// Puts an operation into a stream when the place of its turn is reached. `work` ends in any case.
  /// `in_call`: see GpuExecutor::run.
  Status execute(const Plan&, GpuPath, Turn, const std::shared_ptr<GpuStream>&, bool in_call,
                 std::shared_ptr<WorkState>*);
  /// The paths `staged` and `hierarchy`: the stream, when it reaches the operation, starts the host's part,
  /// which then takes the turn.
  Status execute_on_host(const Plan&, GpuPath, Turn, const std::shared_ptr<GpuStream>&,
                         std::shared_ptr<WorkState>*);
  Status carry_staged(const Operation& staged, const NextPart&, Turn);
  /// The host's part of the path `hierarchy`.
  Status run_between_hosts(const Operation&, const Plan& whole, const NextPart&);
  Status need_inner();  ///< makes the inner group unless there is one
  std::shared_ptr<InnerGroup> inner();
  void release(const Status& why);  ///< the group has failed

  Context& context_;
  const Members& members_;
  const std::uint64_t key_;
  const Planner& planner_;
  Sequencer& sequencer_;
  FailureDetector& detector_;
  OperationWaiter& waiter_;
  HostOperations& host_;
  std::mutex mutex_;
  std::unique_ptr<GpuExecutor> executor_;
  const MakeInnerGroup make_inner_;
  std::shared_ptr<InnerGroup> inner_;  // made on first use
  std::mutex stream_mutex_;
  std::shared_ptr<GpuStream> own_stream_;
};

}  // namespace ouro::rt
