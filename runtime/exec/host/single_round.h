// Single rounds: staged flows of one round without their flow. Chosen by execution_plan.cc; compared with the
// flows by tests.
#pragma once
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// What the steps of a staged flow come to in a single round of even blocks in one buffer: one post, one wait
/// for each rank that posts too, a fold or copies. For the part that this rank has in it, once the plan's
/// `flow`, `once` and `reduces` are known.
HostRun single_round(const Operation&, const ExecutionPlan&);
/// Whether it is one of those.
bool is_single_round(HostRun);

}  // namespace ouro::rt
