// Operations that bypass staging if the buffers of all ranks allow it, and batches that run as one operation
// if all ranks can: ranks agree on either through the arrival records of the operation's first round. Used by
// group and execution_plan.cc.
#pragma once
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// Determines whether all ranks have registered buffers, or buffers that the others may read, and runs the
/// zero-copy, the pull or the selected flow accordingly.
Status run_by_reference(HostResources&, InFlight&);

/// Runs the operations of a batch as one if all ranks can. *can: on entry, whether this rank can; on return,
/// whether all can. If not, no data has moved, and the caller runs the operations one by one.
Status run_as_one(HostResources&, InFlight&, bool* can);

/// Whether rank `rank` posts input in the first round of this operation's staged flow.
bool posts_input(const Operation&, int rank);

}  // namespace ouro::rt
