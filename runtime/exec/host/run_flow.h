// Maps each flow to the function that runs it on the host and to the properties that planning needs. Used
// by execution_plan.cc.
#pragma once
#include "kernels/flow/list.h"
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// The properties of a flow that planning needs (kernels/flow/traits.h), and the function that runs it.
struct HostFlow {
  HostRun run = nullptr;
  int chunks = 1;  ///< per round
  bool pipelined = false, keeps = false, stages = false, by_reference = false, rooted = false;
  bool posts_others = false, posts_result = false;
};

/// The flow of this algorithm for the operation's collective.
HostFlow host_flow(const Operation&, flow::Algorithm, const Members&);

}  // namespace ouro::rt
