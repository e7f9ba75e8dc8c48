// Operations on memory of GPUs: onto the user's streams. Used by group_calls.cc.
#pragma once
#include <vector>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Enqueues the calls of one ncclGroupEnd, or a single one, all on communicators of GPUs; the outcome of
/// each. Of each communicator, the stream of the first call carries them all: it waits for what is on the
/// others, and they wait for the result. What is wrong with the group as a whole is the outcome of the first.
/// Errors: those of the operations; unsupported (streams of which some are captured; a stream of two
/// communicators).
std::vector<Status> enqueue_on_gpus(std::vector<Call>& calls);

/// The factor of a user's reduction, read from where it lies once `on` has come to this point: that is waited
/// for. Errors: unsupported (on a stream that is captured), device.
Result<ReduceOp> read_factor(const void* from, DType, const Stream& on);

}  // namespace ouro::nccl
