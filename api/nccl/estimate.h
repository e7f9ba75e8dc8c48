// How long a group of operations would take. Used by ncclGroupSimulateEnd.
#pragma once
#include <vector>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Microseconds, of the communicator that takes longest. A model, not a measurement: steps that wait for each
/// other, bytes that this machine's memory moves (its speed is measured once, which takes some milliseconds),
/// and an assumed network between hosts.
double estimate(const std::vector<Call>& calls);

}  // namespace ouro::nccl
