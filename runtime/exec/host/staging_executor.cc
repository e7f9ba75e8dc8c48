// Steps over staging buffers. See staging_executor.h; their meaning is in kernels/flow/step.h.
#include "runtime/exec/host/staging_executor.h"

namespace ouro::rt {

using flow::Step;

Status StagingExecutor::post(const Step& s) {
  const std::uint64_t round = round_of(s.chunk);
  OURO_TRY(rounds_.open(round));
  const std::size_t elem = chunks.plan.elem;
  for (int j = 0; j < s.span; ++j) {
    const Extent e = chunks.in(s.span == 1 ? s.chunk : flow::nth(s.chunk, j, chunks.cut.per_round()));
    std::byte* const piece = piece_at(rounds_, use_, rounds_.mine(), round, static_cast<std::size_t>(j));
    if (e.count > 0)
      chunks.parts(e, [&](const std::byte* in, std::byte*, std::size_t done, std::size_t count) {
        copy_post(use_, piece + done * elem, in, count * elem);
      });
  }
  rounds_.publish(round, StagingView::kPosted);
  return {};
}

Status StagingExecutor::post_result(const Step& s) {
  const std::uint64_t round = round_of(s.chunk);
  OURO_TRY(rounds_.open(round));
  const std::size_t elem = chunks.plan.elem;
  std::byte* const piece = piece_at(rounds_, use_, rounds_.mine(), round, use_.result);
  chunks.parts(chunks.out(s.chunk),
               [&](const std::byte*, std::byte* out, std::size_t done, std::size_t count) {
                 copy_post(use_, piece + done * elem, out, count * elem);
               });
  rounds_.publish(round, StagingView::kResult);
  return {};
}

Status StagingExecutor::await_post(int from, const Step& s, const void** where) {
  const std::uint64_t round = round_of(s.at);
  const bool result = (s.verb & flow::kResult) != 0;
  OURO_TRY(rounds_.wait_for(from, round, result ? StagingView::kResult : StagingView::kPosted));
  std::size_t position = 0;
  if (result)
    position = use_.result;
  else if (use_.others)
    position = static_cast<std::size_t>(flow::piece_for(chunks.cut.within_round(s.at), from, n_));
  *where = piece_at(rounds_, use_, rounds_.of(from), round, position);
  return {};
}

Status StagingExecutor::fetch(const Step& s) {
  const void* source = nullptr;
  OURO_TRY(await_post(s.from, s, &source));
  // A root that has run ahead has already written the next arrival record: prefetches it during this copy.
  if (use_.depth == StagingView::kArrivals)
    __builtin_prefetch(&rounds_.of(s.from).arrival(rounds_.current() + 1));
  const std::size_t elem = chunks.plan.elem;
  chunks.parts(chunks.out(s.chunk),
               [&](const std::byte*, std::byte* to, std::size_t done, std::size_t count) {
                 chunks.deliver(to, static_cast<const std::byte*>(source) + done * elem, count * elem);
               });
  return {};
}

Status StagingExecutor::reduce(const Step& s) {
  const bool premul = chunks.plan.reduction.op == OpKind::premulsum;
  for (int r = 0; r < n_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r == me_) {  // read from its buffer, posted or not
      scratch_.sources[i] = chunks.in_at(chunks.in(s.at));
      scratch_.factors[i] = chunks.op.op.scalar;
      continue;
    }
    OURO_TRY(await_post(r, s, &scratch_.sources[i]));
    if (premul) scratch_.factors[i] = rounds_.factor_of(r, round_of(s.at));
  }
  const Extent out = chunks.out(s.chunk);
  if (chunks.op.segments.empty()) {
    chunks.fold(chunks.out_at(out), out.count);
    return {};
  }
  scratch_.posted = scratch_.sources;
  chunks.parts(out, [&](const std::byte* in, std::byte* to, std::size_t done, std::size_t count) {
    for (std::size_t r = 0; r < scratch_.posted.size(); ++r)
      scratch_.sources[r] = static_cast<const std::byte*>(scratch_.posted[r]) + done * chunks.plan.elem;
    scratch_.sources[static_cast<std::size_t>(me_)] = in;
    chunks.fold(to, count);
  });
  return {};
}

}  // namespace ouro::rt
