// GpuMessages: messages in memory of this rank's GPU, carried through memory that stands in for it.
// Used by Group.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/group/messages.h"
#include "runtime/plan/members.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Moves messages in stream order. It chooses the carrier of each message in memory of the device: memory of
/// the device that the fabric reads or writes, where it can (LentCarrier, ReceiptCarrier), else pinned memory
/// of the host, which is filled before and copied back after (PinnedCarrier).
class GpuMessages {
 public:
  GpuMessages(Context& context, const Members& members)
      : context_(context), members_(members), crowded_(crowded(context, context.rank())) {}

  /// Moves the messages on the host; called on a thread of the stream. Returns the outcome.
  using Exchange = std::function<Status(const std::vector<Message*>&)>;
  /// Enqueues what carries these messages, of which some are on the device, in the stream. The returned work
  /// ends when the device has the data. Errors: invalid (the stream is of another GPU), resource, those of
  /// the device.
  Result<std::shared_ptr<WorkState>> run(std::vector<std::shared_ptr<Message>>,
                                         const std::shared_ptr<GpuStream>&, Exchange) const;

 private:
  /// Whether the fabric carries a message from and to memory of the device at both ends, and the message is
  /// long enough to gain, and not so long that it would take too much of the device's memory.
  bool on_fabric(const Message&) const;
  /// Chooses the carrier of a message, and takes its memory. Errors: resource.
  Status take_carrier(Message*, bool may_use_fabric) const;
  /// After an error, copies that have been enqueued may still access the pinned memory of the messages.
  Result<std::shared_ptr<WorkState>> enqueue(const std::vector<std::shared_ptr<Message>>&,
                                             const std::shared_ptr<OperationOnDevice>&,
                                             const std::shared_ptr<GpuStream>&, Exchange) const;

  Context& context_;
  const Members& members_;
  const bool crowded_;  // streams must not wait: nothing may follow the kernel that waits for the host
};

}  // namespace ouro::rt
