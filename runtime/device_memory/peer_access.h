// Access of the devices of this process to each other's memory. Used by Context when a rank joins.
#pragma once
#include "runtime/job/job_members.h"

namespace ouro::rt {

/// Enables access between all devices of this process's ranks that can map each other, in both directions. A
/// driver may wait for the work of both devices, so this returns before the rank can launch a kernel that
/// waits for another rank. Each pair is enabled once in a process. An error is logged: operations that need
/// the pair return it.
void enable_peer_access(const JobMembers&);

}  // namespace ouro::rt
