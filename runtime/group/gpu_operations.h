// Operations on the memory of this rank's GPU. Used by Group.
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
#include "runtime/group/messages.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

class Group;

/// Puts a group's operations and messages on device memory into streams: finds the path, takes the turn, and
/// looks after what is under way. The executor is made on first use.
class GpuOperations final : public DeviceObserver {
 public:
  GpuOperations(Context& context, const Members& members, std::uint64_t key, const Planner& planner,
                Sequencer& sequencer, FailureDetector& detector, OperationWaiter& waiter,
                HostOperations& host);
  ~GpuOperations();
  GpuOperations(const GpuOperations&) = delete;
  GpuOperations& operator=(const GpuOperations&) = delete;

  /// That a call's buffers and stream are those of this rank's GPU. Errors: invalid.
  Status check(const Operation&, Stream*) const;
  /// Runs an operation in `stream`, or in one of the group's own (nullptr); `wait`: until it has ended.
  /// *work, if it is asked for, ends with it.
  Status submit(const Operation&, GpuStream* stream, std::shared_ptr<WorkState>* work, bool wait);
  /// The same in the order of a stream of the host, which waits for it. Its turn is that of this call.
  Status submit(const Operation&, Stream& host, std::shared_ptr<WorkState>* work);
  Result<std::string> explain(const Operation&);
  /// For work on this rank's GPU that was given no stream of it. Errors: invalid (it has none), resource.
  Result<std::shared_ptr<GpuStream>> own_stream();
  /// How many operations this rank has enqueued on a path.
  std::uint64_t ran(GpuPath);
  /// In how many of them all ranks' kernels knew this rank's buffers, by the time of its call.
  std::uint64_t named();

  /// Moves messages, some of which lie on this rank's GPU, in stream order: through pinned memory, which is
  /// filled before and emptied after. `exchange` is called on a thread of the stream's and moves them on the
  /// host; the returned work ends when the device has the data, too.
  using Exchange = std::function<Status(const std::vector<Message*>&)>;
  Result<std::shared_ptr<WorkState>> run_messages(std::vector<std::shared_ptr<Message>>,
                                                  const std::shared_ptr<GpuStream>&, Exchange exchange) const;

  bool idle();
  /// Returns when all operations have ended.
  void drain();
  /// After that: no operation comes any more.
  void leave();
  /// Called now and then from the watch thread: what streams wait for, the host looks after.
  void look_at_gpu() override;

 private:
  GpuExecutor& executor();
  GpuExecutor* made();  ///< or nullptr, before the first use
  Status run(const Plan&, GpuPath, Sequencer::Entry, const std::shared_ptr<GpuStream>&,
             std::shared_ptr<WorkState>*);
  /// After an error, what has been enqueued may still come to their pinned memory.
  Result<std::shared_ptr<WorkState>> enqueue_messages(const std::vector<std::shared_ptr<Message>>&,
                                                      const std::shared_ptr<transport::OnDevice>&,
                                                      const std::shared_ptr<GpuStream>&,
                                                      Exchange exchange) const;
  Status submit_beside(const Plan&, GpuPath, std::uint64_t ticket, const std::shared_ptr<GpuStream>&,
                       std::shared_ptr<WorkState>*);
  /// The host's part of the path `hierarchy`: by the group of the ranks of this one's index on all hosts.
  Status run_between_hosts(const Operation&, const Plan& whole, const NextPart&);
  Result<std::shared_ptr<Group>> make_between();
  std::shared_ptr<Group> between();
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
  std::shared_ptr<Group> between_;  // made on first use
  std::mutex stream_mutex_;
  std::shared_ptr<GpuStream> own_stream_;
};

}  // namespace ouro::rt
