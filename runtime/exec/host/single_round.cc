// Single rounds by hand. See single_round.h.
#include "runtime/exec/host/single_round.h"

#include "runtime/exec/host/staging_executor.h"

namespace ouro::rt {

Status run_single_round(HostResources& h, InFlight& f) {
  const Operation& op = f.plan->op;
  const ExecutionPlan& plan = *f.plan->host;
  const SingleRound& once = plan.once;
  const StagingUse& use = plan.flow.staging;
  StagingRounds& rounds = h.rounds;
  OURO_TRY(rounds.begin(f, use));
  const std::uint64_t round = rounds.first();
  const auto* const in = static_cast<const std::byte*>(op.in.data);
  auto* const out = static_cast<std::byte*>(op.out.data);
  const int rank = h.members.rank(), n = h.members.size();
  const auto me = static_cast<std::size_t>(rank);
  if (once.posts) {
    OURO_TRY(rounds.open(round));
    std::byte* piece = piece_at(use, rounds.mine(), round, 0);
    if (!use.others) kernels::copy_shared(piece, in, once.bytes);
    for (int d = 1; use.others && d < n; ++d, piece += use.stride)
      kernels::copy_shared(piece, in + static_cast<std::size_t>(flow::wrap(rank + d, n)) * once.bytes,
                           once.bytes);
    rounds.mine().publish(round, StagingView::kPosted, rounds.tag());
  }
  if (once.copies_own) place(out + me * once.out_step, in + me * once.in_step, once.bytes);
  const bool premul = plan.reduction.op == OpKind::premulsum, all = once.sources == n - 1;
  for (int d = 1; d <= once.sources; ++d) {
    const int from = all ? flow::wrap(rank + d, n) : op.root;
    const auto i = static_cast<std::size_t>(from);
    OURO_TRY(rounds.wait_for(from, round, StagingView::kPosted));
    const int position = use.others ? flow::piece_for(rank, from, n) : 0;
    const std::byte* const piece = piece_at(use, rounds.of(from), round, static_cast<std::size_t>(position));
    if (plan.reduces)
      h.scratch.sources[i] = piece;
    else
      place(out + i * once.out_step, piece, once.bytes);
    if (premul) h.scratch.factors[i] = rounds.factor_of(from, round);
  }
  if (all) rounds.heard_all(round);
  if (plan.reduces && once.sources > 0) {
    h.scratch.sources[me] = in + me * once.in_step;
    h.scratch.factors[me] = op.op.scalar;
    plan.fold(out, h.scratch.sources, h.scratch.factors, plan.flow.cut.unit());
  }
  rounds.release();
  return {};
}

}  // namespace ouro::rt
