// A trial of the access of GPUs to each other's memory. Used by Context when a rank joins.
#pragma once
#include <chrono>

#include "runtime/device_memory/device_memory.h"

namespace ouro::rt {

/// Whether `from` can access memory of rank `to` of its host: their GPUs differ, the driver reports it, and
/// the trial has not refuted it.
bool reaches(const JobMembers&, int from, int to);

/// Reads and writes memory of each other GPU of this host that the driver reports as reachable, by a kernel,
/// and publishes what was wrong (ControlPage::gpu_wrong). Behind some bridges, as in virtual machines,
/// accesses succeed and have no effect or reach other memory. Returns when all ranks of this host have
/// published, so that all choose the same paths. Called by all of them. Errors: those of this rank's device;
/// deadline (a rank has not published); device, if access is wrong and the job has ranks on other hosts,
/// which the finding does not reach.
Status try_peer_access(DeviceMemory&, int device, std::chrono::milliseconds timeout);

}  // namespace ouro::rt
