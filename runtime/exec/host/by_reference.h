// Operations that can do without staging if the buffers of all ranks allow it, and batches that can run as
// one if all ranks can: both are asked on the arrival records of the operation's first round. Used by group
// and execution_plan.cc.
#pragma once
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// Finds out whether all ranks have registered buffers, or buffers that others may read, and runs the
/// zero-copy, the pull or the selected flow.
Status run_by_reference(HostResources&, InFlight&);

/// Runs operations of a batch as one if all ranks can. *can: whether this one can; then whether all can. If
/// not, nothing has moved, and they run one by one next.
Status run_as_one(HostResources&, InFlight&, bool* can);

/// Whether the staged flow of this operation has rank `rank` post inputs in its first round.
bool posts_input(const Operation&, int rank);

}  // namespace ouro::rt
