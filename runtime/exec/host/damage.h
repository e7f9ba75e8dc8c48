// An operation of which what this rank writes for others is damaged (OURO_FAULT). Used by group.
#pragma once
#include "runtime/exec/host/host_resources.h"

namespace ouro::rt {

/// In place of the run of the operation in flight. Between hosts the operation runs, and a bit of a frame is
/// flipped, each time that it goes. Within a host this rank writes arrival records, or slots, that are right
/// but for a bit of their signatures, and waits for the others to find that, which ends the group.
/// `postponed`: this rank sends nothing in it, so it ran as it was.
Status run_damaged(HostResources&, InFlight&, bool* postponed);

}  // namespace ouro::rt
