// Single rounds: hand-written replacements of staged flows that have one round. Chosen by execution_plan.cc;
// tests compare them with the flows.
#pragma once
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// The function that has the same effect as the steps of a staged flow in a single round of even blocks in
/// one buffer: one post, one wait for each rank that posts too, then a fold or copies. It depends on this
/// rank's part in the operation. Precondition: `flow`, `once` and `reduces` of the plan are set.
HostRun single_round(const Operation&, const ExecutionPlan&);
/// Whether `run` is one of these functions.
bool is_single_round(HostRun);

}  // namespace ouro::rt
