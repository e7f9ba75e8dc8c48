// Planning for the host: the kernels, the geometry, and the executor of each flow. See execution_plan.h.
#include "runtime/exec/host/execution_plan.h"

#include <algorithm>

#include "kernels/flow/specialisations.h"
#include "runtime/exec/host/by_reference.h"
#include "runtime/exec/host/run_flow.h"
#include "runtime/exec/host/single_round.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kLine = 64;  // bytes of a cache line; payloads are cut into whole lines

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
std::size_t whole_lines(std::size_t bytes) { return ceil_div(bytes, kLine) * kLine; }

/// Whether the weights of a mix all equal 1/n, computed in double. If so, the values are summed and divided
/// once: with products by a rounded 1/n, the mean of ten ones would not be 1.
bool is_mean(const Operation& op) {
  if (!traits_of(op.collective).neighbours() || op.in_neighbours.empty()) return false;
  const double share = 1 / static_cast<double>(op.in_neighbours.size() + 1);
  return op.op.scalar.real == share &&
         std::all_of(op.in_neighbours.begin(), op.in_neighbours.end(),
                     [&](const auto& neighbour) { return neighbour.second == share; });
}

kernels::Reduction reduction_of(const Operation& op, DType t, int n) {
  if (is_mean(op)) return {t, OpKind::avg, static_cast<int>(op.in_neighbours.size()) + 1};
  return {t, op.reduces() ? op.op.kind : OpKind::sum, n, op.op.scalar};
}

/// Small posts are stored in the arrival record itself, or, if ranks may run far ahead, in eager slots.
/// ring: longer posts use the ring.
StagingUse staging_use(const HostFlow& flow, std::size_t bytes, bool ring, int n, const SlotBytes& slots) {
  StagingUse use;
  const auto posted = static_cast<std::size_t>(flow::input_pieces(flow.posts_others, n));
  use.others = flow.posts_others;
  use.result = posted;
  if (flow.pipelined) use.ahead = static_cast<std::uint64_t>((flow.posts_result ? 2 : 1) * flow::kStagingLag);
  if (!flow.posts_result && bytes <= Arrival::kInline / posted)
    use.on = StagingUse::On::arrival, use.stride = bytes;
  else if (flow.rooted && whole_lines(bytes) <= slots.eager / posted)
    use.on = StagingUse::On::eager, use.stride = whole_lines(bytes);
  else  // small pieces are adjacent
    use.stride = std::min(slots.staging / (posted + flow.posts_result) / kLine * kLine, whole_lines(bytes));
  const std::size_t span = (posted + flow.posts_result) * use.stride;
  if (use.on != StagingUse::On::slot)
    use.depth = StagingView::kArrivals;
  else if (ring && slots.ring > 0 && span > slots.near)
    use.on = StagingUse::On::ring, use.span = span;
  // A rank that waits for no other runs several rounds ahead. Requests for more than two lines delay
  // the stores.
  constexpr std::uint64_t kRooted = 4, kOthers = 1;
  if (use.on == StagingUse::On::arrival || (use.on == StagingUse::On::eager && posted * use.stride <= kLine))
    use.owns_ahead = flow.rooted ? kRooted : kOthers;
  return use;
}

/// Determines the size of chunks and the number of rounds.
FlowPlan plan_flow(const Operation& op, flow::Algorithm algorithm, const Choice& choice,
                   const ExecutionPlan& plan, const Members& members, const SlotBytes& slots) {
  const HostFlow flow = host_flow(op, algorithm, members);
  const int n = members.size();
  FlowPlan part;
  part.run = flow.run, part.stages = flow.stages;
  part.cut = Partition(op, members.rank(), n);
  const std::size_t longest = part.cut.longest();
  std::size_t capacity = 0;
  if (n == 1 || flow.by_reference) {
    capacity = flow::Cut::in_one_round(part.cut.blocks(), longest, flow.chunks);
  } else if (flow.stages) {
    part.staging = staging_use(flow, longest * plan.elem, choice.ring, n, slots);
    part.staging.built_in = choice.built_in;
    capacity = part.staging.on == StagingUse::On::arrival ? longest : part.staging.stride / plan.elem;
  } else {
    capacity = plan.wire.capacity(slots.link / kLine * kLine);
  }
  // Chunks are whole cache lines, so that pieces of different ranks do not share a line, and rounds are of
  // equal size.
  part.cut.cut(flow.chunks, std::max<std::size_t>(1, capacity), flow.pipelined,
               std::max<std::size_t>(1, kLine / plan.elem));
  if (flow.keeps)
    part.accumulators = static_cast<std::size_t>(flow.pipelined ? 1 : flow.chunks) * part.cut.capacity() *
                        plan.wire.accumulator;
  return part;
}

/// Fills in `once` if a single round is registered for this flow (specialisations.h) and its conditions hold;
/// else returns false.
bool plan_single_round(const Operation& op, const Members& members, flow::Algorithm algorithm,
                       ExecutionPlan* plan) {
  const FlowPlan& part = plan->flow;
  const int n = members.size(), rank = members.rank();
  std::uint32_t holds = 0;
  if (n > 1) holds |= flow::kSeveralRanks;
  if (part.cut.rounds() == 1) holds |= flow::kOneRound;
  if (!op.uneven) holds |= flow::kEven;
  if (op.segments.empty()) holds |= flow::kOneBuffer;
  if (!part.streams) holds |= flow::kCached;
  if (!flow::specialised(flow::Specialisation::single_round, op.collective, algorithm, holds)) return false;
  const HostFlow flow = host_flow(op, algorithm, members);
  const CollectiveTraits traits = traits_of(op.collective);
  const bool root = rank == op.root,
             all_read = !flow.rooted || (root && traits.out.owner == CollectiveTraits::Owner::root);
  SingleRound& once = plan->once;
  once.bytes = part.cut.unit() * plan->elem;
  once.posts = posts_input(op, rank);
  once.copies_own = !plan->reduces && (!flow.rooted || root);
  once.sources = all_read ? n - 1 : once.posts ? 0 : 1;
  if (part.staging.others) once.in_step = once.bytes;
  if (traits.out.many()) once.out_step = once.bytes;
  return true;
}

}  // namespace

std::shared_ptr<const ExecutionPlan> make_execution_plan(const Plan& from, const Members& members,
                                                         const SlotBytes& slots, bool single_rounds) {
  const Operation& op = from.op;
  const Choice& choice = from.choice;
  auto plan = std::make_shared<ExecutionPlan>();
  const DType t = op.dtype(members.rank());
  plan->elem = op.collective == Collective::barrier ? 1 : size_of(t);
  plan->reduces = op.reduces();
  plan->reduction = reduction_of(op, t, members.size());
  if (plan->reduces) plan->fold = kernels::Fold(plan->reduction);
  plan->wire = wire_of(op, members.rank());

  const auto part = [&](flow::Algorithm a, bool streams) {
    FlowPlan made = plan_flow(op, a, choice, *plan, members, slots);
    made.streams = streams;
    return made;
  };
  const bool alone = members.size() == 1;
  const bool zero_copy = choice.algorithm == flow::Algorithm::zerocopy,
             pull = choice.algorithm == flow::Algorithm::pull;
  if (choice.try_zero_copy || zero_copy)
    plan->zero_copy = part(flow::Algorithm::zerocopy, choice.streams_by_reference);
  if (choice.try_pull || pull) plan->pull = part(flow::Algorithm::pull, choice.streams_by_reference);
  if (!zero_copy && !pull) plan->flow = part(choice.algorithm, choice.streams);
  if (alone)
    plan->run = zero_copy ? plan->zero_copy.run : pull ? plan->pull.run : plan->flow.run;
  else if (plan->zero_copy.run || plan->pull.run)
    plan->run = run_by_reference;
  else if (single_rounds && plan_single_round(op, members, choice.algorithm, plan.get()))
    plan->run = single_round(op, *plan);
  else
    plan->run = plan->flow.run;
  return plan;
}

}  // namespace ouro::rt
