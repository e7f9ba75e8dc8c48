// Instantiates each flow once, for the executor that its traits specify. See run_flow.h.
#include "runtime/exec/host/run_flow.h"

#include "runtime/exec/host/link_executor.h"
#include "runtime/exec/host/pull_executor.h"
#include "runtime/exec/host/staging_executor.h"
#include "runtime/exec/host/zero_copy_executor.h"

namespace ouro::rt {
namespace {

template <class Flow>
using ExecutorOf =
    std::conditional_t<Flow::kPulls, PullExecutor,
                       std::conditional_t<Flow::kByReference, ZeroCopyExecutor,
                                          std::conditional_t<Flow::kStaging, StagingExecutor, LinkExecutor>>>;

template <class Flow>
const FlowPlan& part_of(const ExecutionPlan& plan) {
  return Flow::kPulls ? plan.pull : Flow::kByReference ? plan.zero_copy : plan.flow;
}

/// Constructs a flow from its run-time data.
template <class Flow>
Flow flow_of(const Operation& op, const Members& members) {
  if constexpr (std::is_same_v<typename Flow::Data, flow::NoData>)
    return {};
  else
    return flow::made<Flow>({members.layout(), {op.op.scalar.real, op.in_neighbours, op.out_neighbours}});
}

template <class Flow>
Status run_flow(HostResources& h, InFlight& f) {
  const Operation& op = f.plan->op;
  const FlowPlan& part = part_of<Flow>(*f.plan->host);
  const bool alone = h.members.size() == 1;
  ExecutorOf<Flow> executor(h, f, part);
  if (!alone) OURO_TRY(executor.begin(f));
  if constexpr (Flow::kKeeps) h.scratch.need(part.accumulators);
  Status outcome;
  const auto listen = [&](const flow::Step& s) {
    if (!outcome.ok()) return;
    if (Status hopped = executor.hop(s); !hopped.ok()) outcome = std::move(hopped);
  };
  const flow::Place at{h.members.rank(), h.members.size(), op.root, part.cut.rounds()};
  const Flow flow = flow_of<Flow>(op, h.members);
  if constexpr (Flow::kPipelined) {
    flow(at, listen);
  } else {
    for (int& round = executor.chunks.round; round < part.cut.rounds() && outcome.ok(); ++round) {
      flow(at, listen);
      if (!alone && outcome.ok()) outcome = executor.end_round();
    }
  }
  if (part.streams) kernels::stream_fence();
  return outcome;
}

}  // namespace

HostFlow host_flow(const Operation& op, flow::Algorithm algorithm, const Members& members) {
  HostFlow found;
  const auto describe = [&]<class Flow>(Flow) {
    // Flows that a switch between GPUs executes never run on the host.
    constexpr auto run = [] {
      if constexpr (Flow::kSwitched)
        return nullptr;
      else
        return run_flow<Flow>;
    }();
    found = {.run = run,
             .chunks = flow_of<Flow>(op, members).chunks({members.rank(), members.size(), op.root, 1}),
             .pipelined = Flow::kPipelined,
             .keeps = Flow::kKeeps,
             .stages = Flow::kStaging,
             .by_reference = Flow::kByReference,
             .rooted = Flow::kRooted,
             .posts_others = Flow::kPostsOthers,
             .posts_result = Flow::kPostsResult};
  };
  flow::visit(op.collective, algorithm, describe);
  return found;
}

}  // namespace ouro::rt
