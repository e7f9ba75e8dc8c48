// Operations on GPU memory: enqueues them on the user's streams. Used by group_calls.cc.
#pragma once
#include <vector>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Enqueues the calls of one ncclGroupEnd, or a single call, all on communicators of GPUs; returns the
/// outcome of each. For each communicator, the stream of its first call executes all of its calls: it waits
/// for earlier work on the other streams, and they wait for the result. An error of the group as a whole is
/// the outcome of the first call. Errors: those of the operations; unsupported (only some of the streams are
/// captured; two communicators share a stream).
std::vector<Status> enqueue_on_gpus(std::vector<Call>& calls);

/// Waits until stream `on` has reached this point, then reads the factor of a user-defined reduction from
/// `from`. Errors: unsupported (on a stream that is being captured), device.
Result<ReduceOp> read_factor(const void* from, DType, const Stream& on);

}  // namespace ouro::nccl
