// Single rounds, hand-written. See single_round.h.
#include "runtime/exec/host/single_round.h"

#include <algorithm>
#include <array>

#include "runtime/exec/host/staging_executor.h"

namespace ouro::rt {
namespace {

/// The parts of one operation, which the functions below combine. The overhead of instructions dominates a
/// call of 8 bytes, so decisions of the plan are resolved at compile time.
struct Round {
  HostResources& h;
  const Operation& op;
  const ExecutionPlan& plan;
  const SingleRound& once = plan.once;
  const StagingUse& use = plan.flow.staging;
  StagingRounds& rounds = h.rounds;
  const std::byte* const in = static_cast<const std::byte*>(op.in.data);
  std::byte* const out = static_cast<std::byte*>(op.out.data);
  const int rank = h.members.rank(), n = h.members.size();
  const std::size_t me = static_cast<std::size_t>(rank);

  Round(HostResources& resources, const InFlight& f) : h(resources), op(f.plan->op), plan(*f.plan->host) {}

  /// kOthers: posts one block for each other rank, instead of one for all.
  template <bool kOthers>
  [[gnu::always_inline]] inline Status post(std::uint64_t round) {
    OURO_TRY(rounds.open(round));
    const StagingView& mine = rounds.mine();
    std::byte* piece = piece_at(rounds, use, mine, round, 0);
    if constexpr (kOthers) {
      for (int d = 1; d < n; ++d, piece += use.stride)
        copy_post(use, piece, in + static_cast<std::size_t>(flow::wrap(rank + d, n)) * once.bytes,
                  once.bytes);
    } else {
      copy_post(use, piece, in, once.bytes);
    }
    mine.publish(round, StagingView::kPosted, rounds.tag());
    if (use.owns_ahead > 0) {
      const std::uint64_t later = round + use.owns_ahead;
      kernels::own_line(&mine.arrival(later).word);
      if (use.on == StagingUse::On::eager) kernels::own_line(mine.eager(later));
    }
    return {};
  }
  [[gnu::always_inline]] inline void copy_own() {
    if (once.copies_own) place(out + me * once.out_step, in + me * once.in_step, once.bytes);
  }
};

/// Runs on the root of a broadcast, and on the ranks of a reduce or a gather that are not the root.
Status post_only(HostResources& h, InFlight& f) {
  Round r(h, f);
  OURO_TRY(r.rounds.begin(f, r.use));
  OURO_TRY(r.post<false>(r.rounds.first()));
  r.copy_own();
  r.rounds.release();
  return {};
}

/// Runs on the receivers of a broadcast.
Status read_root(HostResources& h, InFlight& f) {
  Round r(h, f);
  OURO_TRY(r.rounds.begin(f, r.use));
  const std::uint64_t round = r.rounds.first();
  OURO_TRY(r.rounds.wait_for(r.op.root, round, StagingView::kPosted));
  place(r.out, piece_at(r.rounds, r.use, r.rounds.of(r.op.root), round, 0), r.once.bytes);
  if (r.n == 2) r.rounds.note_all_posted(round);
  r.rounds.release();
  return {};
}

/// Runs in all other cases.
template <bool kReduces, bool kOthers>
Status meet(HostResources& h, InFlight& f) {
  Round r(h, f);
  OURO_TRY(r.rounds.begin(f, r.use));
  const std::uint64_t round = r.rounds.first();
  if (r.once.posts) OURO_TRY(r.post<kOthers>(round));
  r.copy_own();
  const bool premul = kReduces && r.plan.reduction.op == OpKind::premulsum, all = r.once.sources == r.n - 1;
  for (int d = 1; d <= r.once.sources; ++d) {
    const int from = all ? flow::wrap(r.rank + d, r.n) : r.op.root;
    const auto i = static_cast<std::size_t>(from);
    OURO_TRY(r.rounds.wait_for(from, round, StagingView::kPosted));
    const int position = kOthers ? flow::piece_for(r.rank, from, r.n) : 0;
    const std::byte* const piece =
        piece_at(r.rounds, r.use, r.rounds.of(from), round, static_cast<std::size_t>(position));
    if constexpr (kReduces) {
      h.scratch.sources[i] = piece;
      if (premul) h.scratch.factors[i] = r.rounds.factor_of(from, round);
    } else {
      place(r.out + i * r.once.out_step, piece, r.once.bytes);
    }
  }
  if (all) r.rounds.note_all_posted(round);
  if (kReduces && r.once.sources > 0) {
    h.scratch.sources[r.me] = r.in + r.me * r.once.in_step;
    h.scratch.factors[r.me] = r.op.op.scalar;
    r.plan.fold(r.out, h.scratch.sources, h.scratch.factors, r.plan.flow.cut.unit());
  }
  r.rounds.release();
  return {};
}

constexpr std::array<HostRun, 6> kAll = {post_only,         read_root,         meet<false, false>,
                                         meet<false, true>, meet<true, false>, meet<true, true>};

}  // namespace

HostRun single_round(const Operation& op, const ExecutionPlan& plan) {
  const bool others = plan.flow.staging.others;
  if (!others && plan.once.sources == 0) return post_only;
  if (op.collective == Collective::broadcast) return read_root;
  if (plan.reduces) return others ? meet<true, true> : meet<true, false>;
  return others ? meet<false, true> : meet<false, false>;
}

bool is_single_round(HostRun run) { return std::ranges::find(kAll, run) != kAll.end(); }

}  // namespace ouro::rt
