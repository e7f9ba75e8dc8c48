// Estimates how long a group of operations would take. Used by ncclGroupSimulateEnd.
#pragma once
#include <vector>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Microseconds, of the communicator that takes longest. A model, not a measurement: it counts steps in which
/// ranks wait for each other, bytes moved in this machine's memory (whose speed is measured once, which takes
/// some milliseconds), and bytes over an assumed network between hosts.
double estimate(const std::vector<Call>& calls);

}  // namespace ouro::nccl
