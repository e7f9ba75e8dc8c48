// Agreement on references and batches through arrival records. See by_reference.h.
#include "runtime/exec/host/by_reference.h"

#include <fmt/format.h>

#include "runtime/exec/host/pull_executor.h"
#include "runtime/exec/host/zero_copy_executor.h"

namespace ouro::rt {
namespace {

/// A rank whose buffers others can reach publishes references to them and waits for the records of all other
/// ranks. A rank without such buffers continues immediately: its first post of the staged flow, in this same
/// round, shows the others that it has no references. *found: the flow that all ranks can run by
/// reference, or null.
Status ask(HostResources& h, const InFlight& f, const FlowPlan** found) {
  const Operation& op = f.plan->op;
  const ExecutionPlan& plan = *f.plan->host;
  StagingRounds& rounds = h.rounds;
  const bool must = !plan.flow.run;
  const int rank = h.members.rank(), n = h.members.size();
  const std::uint64_t round = rounds.current();
  OURO_TRY(rounds.open(round));
  Arrival& record = rounds.mine().arrival(round);
  record.in = record.out = {};
  const bool reachable =
      (plan.zero_copy.run && !f.plan->choice.declines_zero_copy &&
       ZeroCopyExecutor::offer(h.context, op, rank, record)) ||
      (plan.pull.run &&
       PullExecutor::offer(h.context, h.members, op, must || f.plan->choice.pull_any_pages, record));
  if (!reachable) record.in = record.out = {kNoReference, 0};
  if (reachable || must || !plan.flow.stages || !posts_input(op, rank))
    rounds.publish(round, StagingView::kReferred);
  if (!reachable && !must) return {};
  bool all_registered = true, all_addresses = true;
  for (int r = 0; r < n; ++r) {
    if (r != rank) OURO_TRY(rounds.wait_for(r, round, StagingView::kReferred));
    const std::uint64_t id = rounds.of(r).arrival(round).in.id;
    all_registered &= id != kNoReference && id != kAddress;
    all_addresses &= id == kAddress;
  }
  // If only some ranks have registered buffers, all ranks use staging buffers.
  if (all_addresses) *found = &plan.pull;
  if (all_registered) *found = &plan.zero_copy;
  return {};
}

}  // namespace

bool posts_input(const Operation& op, int rank) {
  const CollectiveTraits traits = traits_of(op.collective);
  return traits.out.owner == CollectiveTraits::Owner::root ? rank != op.root
                                                           : traits.in.counts(rank, op.root);
}

Status run_by_reference(HostResources& h, InFlight& f) {
  const ExecutionPlan& plan = *f.plan->host;
  const FlowPlan* found = nullptr;
  OURO_TRY(h.rounds.begin(f, plan.flow.staging));
  OURO_TRY(ask(h, f, &found));
  if (found) return found->run(h, f);
  if (!plan.flow.stages) h.rounds.release();
  if (plan.flow.run) return plan.flow.run(h, f);
  const auto collective = name(f.plan->op.collective);
  if (plan.pull.run)
    return unsupported(
        fmt::format("{}: algorithm 'pull' needs ranks that may read each other's memory", collective));
  return invalid(
      fmt::format("{}: algorithm 'zerocopy' needs buffers from Context::alloc on every rank", collective));
}

/// Whether the operations of a batch can run as one depends on the buffers and streams of each rank. A rank
/// that cannot does not wait for the records of the others.
Status run_as_one(HostResources& h, InFlight& f, bool* can) {
  const ExecutionPlan& plan = *f.plan->host;
  StagingRounds& rounds = h.rounds;
  OURO_TRY(rounds.begin(f, plan.flow.staging));
  const std::uint64_t round = rounds.current();
  OURO_TRY(rounds.open(round));
  rounds.mine().arrival(round).in = {*can ? kAsOne : kNoReference, 0};
  rounds.publish(round, StagingView::kReferred);
  for (int r = 0; r < h.members.size() && *can; ++r) {
    if (r == h.members.rank()) continue;
    OURO_TRY(rounds.wait_for(r, round, StagingView::kReferred));
    *can = rounds.of(r).arrival(round).in.id == kAsOne;
  }
  if (*can) return plan.run(h, f);
  rounds.release();
  return {};
}

}  // namespace ouro::rt
