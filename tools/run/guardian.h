// The two processes of a launcher, each of which cleans up if the other is killed. Used by launcher.cc
// and agent.cc.
#pragma once
#include <functional>
#include <string>

#include "runtime/core/status.h"

namespace ouro::run {

/// Runs `work` in a child of this process, from which all ranks descend, and returns the result of `work`.
/// `above` is a pipe that only this process reads, for Signals.
///
/// This process passes signals on to the child (which leads a process group of its own, so no signal arrives
/// twice) and stops and continues together with it. If this process is killed, the child notices and ends the
/// job. If the child is killed, this process, to which all orphans are then reparented, kills them, reports
/// this as `name` on standard error and returns 128 + the signal. Only if both are killed at once do those
/// processes survive that have left their rank's process group.
///
/// Errors: those of `work`; resource.
Result<int> guarded(const std::string& name, const std::function<Result<int>(int above)>& work);

}  // namespace ouro::run
