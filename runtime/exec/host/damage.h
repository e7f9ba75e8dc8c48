// Fault injection (OURO_FAULT): an operation in which this rank damages what it writes for other ranks.
// Used by group.
#pragma once
#include "runtime/exec/host/host_resources.h"

namespace ouro::rt {

/// Called instead of running the operation in flight. Between hosts the operation runs, and one bit of a
/// frame is flipped each time that frame is sent. Within a host this rank writes arrival records, or slots,
/// that are valid except for one bit of their signatures, and then waits until the other ranks detect that,
/// which ends the group. `postponed`: this rank sends nothing in this operation, so it ran undamaged.
Status run_damaged(HostResources&, InFlight&, bool* postponed);

}  // namespace ouro::rt
