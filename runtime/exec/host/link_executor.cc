// Hops over links. See link_executor.h; the steps' meaning is in kernels/flow/step.h.
#include "runtime/exec/host/link_executor.h"

#include <fmt/format.h>

namespace ouro::rt {

using flow::Step;

/// Waits until `c` has reached `at_least`. `f_.awaited` names the awaited rank if only that rank knows
/// whether it takes part. Other ranks may do their part and leave long before this rank needs them, but data
/// that a departed rank of another host has not sent never arrives.
Status LinkExecutor::await(const LinkEnd& link, Counter& c, std::uint64_t at_least, InFlight::Awaited whom) {
  if (load(c) >= at_least) return {};
  if (link.remote || traits_of(chunks.op.collective).neighbours()) f_.awaited = whom;
  Status s = h_.waiter.until(c, at_least, link.remote);
  f_.awaited = {};
  return s;
}

Status LinkExecutor::await_message(LinkEnd& link, int from, std::size_t bytes, std::size_t total) {
  const bool mixes = traits_of(chunks.op.collective).neighbours();
  OURO_TRY(await(link, *link.view.full, link.next + 1, {from, true}));
  const SlotHeader header =
      link.view.header(link.next);  // copied because the peer could change the original meanwhile
  const auto fault = [from](Reason reason, std::string text) {
    return Status(
        Failure{.reason = reason, .text = std::move(text), .rank = from, .detector = "slot header"});
  };
  if (mixes && header.seq < f_.seq)
    return fault(Reason::mismatch,
                 fmt::format("it gave this rank a vector in operation {} that this rank did not take: "
                             "their rows of that operation do not match",
                             header.seq));
  if (header.seq != f_.seq || header.signature != f_.plan->folded) return suspicion(from, "slot header");
  if (header.total != total)
    return fault(Reason::mismatch,
                 fmt::format("it sends {} elements where {} are expected", header.total, total));
  if (header.bytes != bytes)
    return fault(Reason::ring_corrupt,
                 fmt::format("a slot of {} bytes where {} are expected", header.bytes, bytes));
  return {};
}

Status LinkExecutor::await_room(LinkEnd& to, int rank) {
  const std::uint64_t slots = to.view.slot_count;
  return await(to, *to.view.freed, to.next >= slots ? to.next + 1 - slots : 0, {rank, false});
}

void LinkExecutor::publish_message(LinkEnd& to, const Step& s, std::size_t count, std::size_t total) {
  const std::size_t bytes = chunks.plan.wire.bytes((s.verb & flow::kPartialOut) != 0, count);
  to.view.header(to.next) = {f_.seq, f_.plan->folded, total, static_cast<std::uint32_t>(bytes), 0};
  publish(*to.view.full, ++to.next);
  if (to.remote) h_.wiring.links().far->sent(s.to);
}

void LinkExecutor::accumulate(const Step& s) {
  const kernels::Reduction& reduction = chunks.plan.reduction;
  const Extent in = chunks.in(s.chunk), out = chunks.out(s.chunk);
  std::byte* const sum = accumulator(s.chunk);
  if (!(s.verb & flow::kAcc))
    kernels::widen(reduction, sum, chunks.in_at(in), in.count);
  else if (!(s.verb & flow::kInput))
    kernels::finish(reduction, chunks.out_at(out), sum, out.count);
  else if (s.verb & flow::kStore)
    kernels::reduce_input_finish(reduction, chunks.out_at(out), sum, chunks.in_at(in), in.count);
  else
    kernels::reduce_input(reduction, sum, sum, chunks.in_at(in), 1, in.count);
}

Status LinkExecutor::receive(const Step& s) {
  const Extent in = s.verb & flow::kInput ? chunks.in(s.chunk) : Extent{};
  const Extent out = s.verb & (flow::kStore | flow::kResult) ? chunks.out(s.chunk) : Extent{};
  const bool partial = (s.verb & flow::kPartialIn) != 0;
  // A step that only forwards a reduction has no output on this rank: its size is that of the input.
  const std::size_t count = s.verb & flow::kStore   ? out.count
                            : s.verb & flow::kInput ? in.count
                                                    : chunks.in(s.chunk).count;
  if (skipped(count)) return {};
  LinkEnd& from = h_.wiring.links().in[static_cast<std::size_t>(s.from)];
  OURO_TRY(await_message(from, s.from, chunks.plan.wire.bytes(partial, count),
                         pairs_ ? chunks.cut.out_count(s.chunk) : 0));
  const std::byte* const got = from.view.payload(from.next);
  LinkEnd* const to = s.verb & flow::kSend ? &h_.wiring.links().out[static_cast<std::size_t>(s.to)] : nullptr;
  if (to) OURO_TRY(await_room(*to, s.to));
  std::byte* const slot = to ? to->view.payload(to->next) : nullptr;
  if (partial) {
    combine(s, in, out, got, slot, count);
  } else if (s.verb & (flow::kInput | flow::kAcc | flow::kKeep) || s.weight != 1) {
    mix(s, in, out, got, count);
  } else {
    if (s.verb & flow::kStore) place(chunks.out_at(out), got, count * chunks.plan.elem);
    if (to) place(slot, got, count * chunks.plan.elem);
  }
  publish(*from.view.freed, ++from.next);
  if (to) publish_message(*to, s, count, 0);
  return {};
}

void LinkExecutor::combine(const Step& s, Extent in, Extent out, const std::byte* got, std::byte* slot,
                           std::size_t count) {
  const kernels::Reduction& reduction = chunks.plan.reduction;
  const bool acc = (s.verb & flow::kAcc) != 0, input = (s.verb & flow::kInput) != 0;
  const std::byte *first = got, *second = acc ? accumulator(s.chunk) : nullptr;
  if (s.verb & flow::kAfter) std::swap(first, second);
  if (s.verb & flow::kStore) {
    std::byte* const to = chunks.out_at(out);
    if (acc)
      kernels::reduce_acc_finish(reduction, to, first, second, count);
    else if (input)
      kernels::reduce_input_finish(reduction, to, got, chunks.in_at(in), count);
    else
      kernels::finish(reduction, to, got, count);
    if (slot) place(slot, to, count * chunks.plan.elem);
    return;
  }
  std::byte* const sink = s.verb & flow::kKeep ? accumulator(s.chunk) : slot;
  if (acc)
    kernels::reduce_acc(reduction, sink, first, second, s.weight, count);
  else if (input)
    kernels::reduce_input(reduction, sink, got, chunks.in_at(in), s.weight, count);
  else
    place(sink, got, chunks.plan.wire.bytes(true, count));
}

void LinkExecutor::mix(const Step& s, Extent in, Extent out, const std::byte* got, std::size_t count) {
  const kernels::Reduction& mine = chunks.plan.reduction;
  kernels::Reduction theirs = mine;
  theirs.premul = {s.weight, 0};
  const bool acc = (s.verb & flow::kAcc) != 0, input = (s.verb & flow::kInput) != 0;
  if (s.verb & flow::kKeep) {
    std::byte* const sum = accumulator(s.chunk);
    if (input) kernels::widen(mine, sum, chunks.in_at(in), count);
    if (input || acc)
      kernels::reduce_input(theirs, sum, sum, got, 1, count);
    else
      kernels::widen(theirs, sum, got, count);
  } else if (acc) {
    kernels::reduce_input_finish(theirs, chunks.out_at(out), accumulator(s.chunk), got, count);
  } else {
    const void* const sources[] = {chunks.in_at(in), got};
    const Scalar factors[] = {mine.premul, theirs.premul};
    const std::size_t first = input ? 0 : 1;
    kernels::fold(mine, chunks.out_at(out), std::span(sources).subspan(first),
                  std::span(factors).subspan(first), count);
  }
}

Status LinkExecutor::send(const Step& s) {
  const std::size_t count = s.verb & flow::kResult ? chunks.out(s.chunk).count : chunks.in(s.chunk).count;
  if (skipped(count)) return {};
  LinkEnd& to = h_.wiring.links().out[static_cast<std::size_t>(s.to)];
  OURO_TRY(await_room(to, s.to));
  std::byte* const slot = to.view.payload(to.next);
  if (s.verb & flow::kAcc)
    place(slot, accumulator(s.chunk), chunks.plan.wire.bytes(true, count));
  else if (s.verb & flow::kResult)
    place(slot, chunks.out_at(chunks.out(s.chunk)), count * chunks.plan.elem);
  else if (s.verb & flow::kPartialOut)
    kernels::widen(chunks.plan.reduction, slot, chunks.in_at(chunks.in(s.chunk)), count);
  else
    place(slot, chunks.in_at(chunks.in(s.chunk)), count * chunks.plan.elem);
  publish_message(to, s, count, pairs_ ? chunks.cut.in_count(s.chunk) : 0);
  return {};
}

}  // namespace ouro::rt
