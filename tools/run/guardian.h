// The two processes of a launcher, of which each clears up after the other. Used by launcher.cc and agent.cc.
#pragma once
#include <functional>
#include <string>

#include "runtime/core/status.h"

namespace ouro::run {

/// Runs `work` in a child of this process, from which all ranks descend, and returns what it returns. `above`
/// is a pidfd of this process, for Signals.
///
/// This process passes signals on to the child (which leads a process group of its own, so none arrives
/// twice) and stops and continues with it. Should it be killed, the child sees it and ends the job. Should
/// the child be killed, this process, to which all orphans then come, ends them, says so as `name` on
/// standard error and returns 128 + the signal. Only if both are killed at once do processes stay that have
/// left their rank's group.
///
/// Errors: those of `work`; resource.
Result<int> guarded(const std::string& name, const std::function<Result<int>(int above)>& work);

}  // namespace ouro::run
