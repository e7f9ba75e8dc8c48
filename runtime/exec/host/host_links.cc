// The host executor's hops over links. See host_executor.h; the steps' meaning is in kernels/flow/step.h.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/exec/host/host_executor.h"

namespace ouro::rt {

using flow::Step;

Status HostExecutor::await_input(LinkEnd& link, int from, std::size_t bytes, std::size_t total) {
  const bool mixes = op_->collective == Collective::mix;
  if (mixes) host_.expect(from, true);
  OURO_TRY(host_.waiter().until(*link.view.full, link.next + 1, link.remote));
  const SlotHeader header = link.view.header(link.next);  // a copy: the peer could change it under us
  if (mixes && header.seq < seq_)
    return Status(
        Failure{.reason = Reason::mismatch,
                .text = fmt::format("it gave this rank a vector in operation {} that this rank did not take: "
                                    "their rows of that operation do not match",
                                    header.seq),
                .rank = from,
                .detector = "slot header"});
  if (header.seq != seq_ || header.signature != signature_) return host_.disagreement(from, "slot header");
  if (header.total != total)
    return Status(
        Failure{.reason = Reason::mismatch,
                .text = fmt::format("it sends {} elements where {} are expected", header.total, total),
                .rank = from,
                .detector = "slot header"});
  if (header.bytes != bytes)
    return Status(
        Failure{.reason = Reason::ring_corrupt,
                .text = fmt::format("a slot of {} bytes where {} are expected", header.bytes, bytes),
                .rank = from,
                .detector = "slot header"});
  return {};
}

Status HostExecutor::hop_link(const Step& s) {
  const bool uneven_pairs = op_->uneven && op_->collective == Collective::all_to_all;
  const Extent in = s.verb & flow::kInput ? in_extent(s.chunk) : Extent{};
  const Extent out = s.verb & (flow::kStore | flow::kResult) ? out_extent(s.chunk) : Extent{};
  if (!(s.verb & flow::kRecv)) {  // what moves is mine alone
    if (s.verb & flow::kSend) {
      // Uneven pairs run for different numbers of rounds: both ends know that an empty piece does not travel.
      if (uneven_pairs && round_index_ > 0 && in.count == 0) return {};
      return send_slot(s, s.verb & flow::kResult ? out : in);
    }
    if ((s.verb & flow::kAcc) && (s.verb & flow::kInput)) {
      if (s.verb & flow::kStore)
        kernels::reduce_input_finish(reduction_, out_at(out), acc_at(s.chunk), in_at(in), in.count);
      else
        kernels::reduce_input(reduction_, acc_at(s.chunk), acc_at(s.chunk), in_at(in), 1, in.count);
    } else if (s.verb & flow::kKeep)
      kernels::widen(reduction_, acc_at(s.chunk), in_at(in), in.count);
    else if (s.verb & flow::kAcc)
      kernels::finish(reduction_, out_at(out), acc_at(s.chunk), out.count);
    else if (s.verb & flow::kWideIn) {
      const void* source = in_at(in);
      kernels::fold(reduction_, out_at(out), {&source, 1}, {&reduction_.premul, 1}, out.count);
    } else if (blocks_) {
      deliver(out_at(out), in_at(in), out.count * elem_);
    } else {
      parts(out, [&](const std::byte* from, std::byte* to, std::size_t, std::size_t n) {
        deliver(to, from, n * elem_);
      });
    }
    return {};
  }
  const bool wide = (s.verb & flow::kWideIn) != 0;
  // A pure forward of a reduction neither stores nor has an output here: its size is the input's.
  const std::size_t count = s.verb & flow::kStore   ? out.count
                            : s.verb & flow::kInput ? in.count
                                                    : in_extent(s.chunk).count;
  if (uneven_pairs && round_index_ > 0 && count == 0) return {};
  LinkEnd& from = lanes_.in[static_cast<std::size_t>(s.from)];
  OURO_TRY(await_input(from, s.from, count * (wide ? acc_bytes_ : elem_),
                       uneven_pairs ? sides_.out.counts[static_cast<std::size_t>(s.chunk)] : 0));
  const std::byte* got = from.view.payload(from.next);
  LinkEnd* to = s.verb & flow::kSend ? &lanes_.out[static_cast<std::size_t>(s.to)] : nullptr;
  if (to)
    OURO_TRY(host_.waiter().until(*to->view.freed,
                                  to->next >= to->view.slot_count ? to->next + 1 - to->view.slot_count : 0,
                                  to->remote));
  std::byte* slot = to ? to->view.payload(to->next) : nullptr;
  if (!wide && (s.verb & (flow::kInput | flow::kAcc | flow::kKeep) || s.weight != 1)) {
    mix_in(s, in, out, got, count);
  } else if (!wide) {
    if (s.verb & flow::kStore) place(out_at(out), got, count * elem_);
    if (to) place(slot, got, count * elem_);
  } else {
    const bool acc = (s.verb & flow::kAcc) != 0;
    const std::byte *first = got, *second = acc ? acc_at(s.chunk) : nullptr;
    if (s.verb & flow::kAfter) std::swap(first, second);
    if (s.verb & flow::kStore) {
      if (acc)
        kernels::reduce_acc_finish(reduction_, out_at(out), first, second, count);
      else if (!(s.verb & flow::kInput))
        kernels::finish(reduction_, out_at(out), got, count);
      else
        kernels::reduce_input_finish(reduction_, out_at(out), got, in_at(in), count);
      if (to) place(slot, out_at(out), count * elem_);
    } else {
      void* sink = s.verb & flow::kKeep ? static_cast<void*>(acc_at(s.chunk)) : slot;
      if (acc)
        kernels::reduce_acc(reduction_, sink, first, second, s.weight, count);
      else if (!(s.verb & flow::kInput))
        place(sink, got, count * acc_bytes_);
      else
        kernels::reduce_input(reduction_, sink, got, in_at(in), s.weight, count);
    }
  }
  publish(*from.view.freed, ++from.next);
  if (to) {
    const std::size_t bytes = count * (s.verb & flow::kWideOut ? acc_bytes_ : elem_);
    to->view.header(to->next) = {seq_, signature_, 0, static_cast<std::uint32_t>(bytes), 0};
    publish(*to->view.full, ++to->next);
    if (to->remote) lanes_.links->sent(s.to);
  }
  return {};
}

/// mine + weight * got, where `got` is an input of somebody else's.
void HostExecutor::mix_in(const Step& s, Extent in, Extent out, const std::byte* got, std::size_t count) {
  kernels::Reduction theirs = reduction_;
  theirs.premul = {s.weight, 0};
  const bool acc = (s.verb & flow::kAcc) != 0, input = (s.verb & flow::kInput) != 0;
  if (s.verb & flow::kKeep) {
    std::byte* const sum = acc_at(s.chunk);
    if (input) kernels::widen(reduction_, sum, in_at(in), count);
    if (input || acc)
      kernels::reduce_input(theirs, sum, sum, got, 1, count);
    else
      kernels::widen(theirs, sum, got, count);
  } else if (acc) {
    kernels::reduce_input_finish(theirs, out_at(out), acc_at(s.chunk), got, count);
  } else {
    const void* const sources[] = {in_at(in), got};
    const Scalar factors[] = {reduction_.premul, theirs.premul};
    const std::size_t first = input ? 0 : 1;
    kernels::fold(reduction_, out_at(out), std::span(sources).subspan(first),
                  std::span(factors).subspan(first), count);
  }
}

Status HostExecutor::send_slot(const Step& s, Extent e) {
  LinkEnd& to = lanes_.out[static_cast<std::size_t>(s.to)];
  if (op_->collective == Collective::mix) host_.expect(s.to, false);
  OURO_TRY(host_.waiter().until(
      *to.view.freed, to.next >= to.view.slot_count ? to.next + 1 - to.view.slot_count : 0, to.remote));
  std::byte* slot = to.view.payload(to.next);
  std::size_t count = e.count;
  if (s.verb & flow::kAcc) {
    count = in_extent(s.chunk).count;
    place(slot, acc_at(s.chunk), count * acc_bytes_);
  } else if (s.verb & flow::kResult) {
    place(slot, out_at(e), count * elem_);
  } else if (s.verb & flow::kWideOut) {
    kernels::widen(reduction_, slot, in_at(e), count);
  } else {
    place(slot, in_at(e), count * elem_);
  }
  const bool uneven_pairs = op_->uneven && op_->collective == Collective::all_to_all;
  const std::size_t bytes = count * (s.verb & flow::kWideOut ? acc_bytes_ : elem_);
  to.view.header(to.next) = {seq_, signature_,
                             uneven_pairs ? sides_.in.counts[static_cast<std::size_t>(s.chunk)] : 0,
                             static_cast<std::uint32_t>(bytes), 0};
  publish(*to.view.full, ++to.next);
  if (to.remote) lanes_.links->sent(s.to);
  return {};
}

}  // namespace ouro::rt
