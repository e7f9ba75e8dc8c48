// Which function runs which flow on the host, and what has to be known of a flow to plan it. Used by
// execution_plan.cc.
#pragma once
#include "kernels/flow/list.h"
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// What plans need to know of a flow (kernels/flow/traits.h), and what runs it.
struct HostFlow {
  HostRun run = nullptr;
  int chunks = 1;  ///< of a round
  bool pipelined = false, keeps = false, stages = false, by_reference = false, rooted = false;
  bool posts_others = false, posts_result = false;
};

/// The flow of this name for the collective of an operation.
HostFlow host_flow(const Operation&, flow::Algorithm, const Members&);

}  // namespace ouro::rt
