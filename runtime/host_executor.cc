// The host executor. See host_executor.h; the steps' meaning is in runtime/flow/step.h.
#include "runtime/host_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ouro::rt {
namespace {

using flow::Step;

constexpr std::size_t kLine = 64;
constexpr std::size_t kSpreadBytes = 8 << 10;  // of one block that is reduced, then written to all outputs

void place(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// The most chunks that any rank posts at once, and whether results are posted too: into how many pieces a page is
/// cut. Heard from the root and its neighbour, which between them stand for all ranks.
template <class Flow>
std::size_t page_parts(const Flow& f, flow::Place at) {
  int span = 1, result = 0;
  for (int rank : {at.root, flow::wrap(at.root + 1, at.size)}) {
    at.rank = rank;
    f(at, [&](const Step& s) {
      if (!(s.verb & flow::kPost)) return;
      if (s.verb & flow::kResult) result = 1;
      else span = std::max(span, s.span);
    });
  }
  return static_cast<std::size_t>(span + result);
}

template <class Flow>
bool keeps_accumulators(const Flow& f, const flow::Place& at) {
  bool keeps = false;
  f(at, [&](const Step& s) { keeps |= (s.verb & flow::kKeep) != 0; });
  return keeps;
}

}  // namespace

Status HostExecutor::run(const Operation& op, const Choice& choice, std::uint64_t seq, std::uint64_t signature) {
  op_ = &op, seq_ = seq, signature_ = signature;
  const DType t = op.dtype(rank_);
  elem_ = op.collective == Collective::barrier ? 1 : size_of(t);
  reduction_ = {t, op.reduces() ? op.op.kind : OpKind::sum, n_, op.op.scalar};
  acc_bytes_ = op.reduces() ? kernels::accumulator_bytes(t, reduction_.op) : elem_;
  plan_blocks();
  bool in_place = false, asked = false;
  if (n_ > 1 && (choice.try_in_place || choice.algorithm == flow::Algorithm::inplace)) {
    OURO_TRY(ask_in_place(&in_place));
    asked = true;
    if (!in_place) end_round();
    if (!in_place && choice.algorithm == flow::Algorithm::inplace)
      return invalid(fmt::format("{}: algorithm 'inplace' needs buffers from ouro::alloc on every rank", name(op.collective)));
  }
  Status outcome;
  const auto algorithm = in_place ? flow::Algorithm::inplace : choice.algorithm;
  if (!flow::visit(op.collective, algorithm, [&](auto f) { outcome = run_flow(f, asked && in_place); }))
    return unsupported(fmt::format("{} has no algorithm '{}'", name(op.collective), flow::name(algorithm)));
  inputs_.clear();
  outputs_.clear();
  return outcome;
}

template <class Flow>
Status HostExecutor::run_flow(const Flow& f, bool posted) {
  flow::Place at{rank_, n_, op_->root, 1};
  by_reference_ = Flow::kByReference && n_ > 1;
  const auto chunks = static_cast<std::size_t>(f.chunks(at));
  const bool blocks = op_->blocks();
  const std::size_t longest = blocks ? std::max(*std::max_element(in_counts_.begin(), in_counts_.end()),
                                                *std::max_element(out_counts_.begin(), out_counts_.end()))
                                     : total_;
  if (by_reference_) {
    capacity_ = blocks ? longest : ceil_div(total_, chunks);
  } else if (Flow::kBoards && n_ > 1) {
    OURO_TRY(host_.need_boards());
    parts_ = page_parts(f, at);
    capacity_ = lanes_.board[0].page_bytes / parts_ / kLine * kLine / elem_;
  } else if (n_ > 1) {
    OURO_TRY(host_.need_links());
    capacity_ = lanes_.out[0].view.slot_bytes / kLine * kLine / std::max(elem_, acc_bytes_);
  } else {
    capacity_ = std::max<std::size_t>(longest, 1);
  }
  const std::size_t region = blocks ? 0 : Flow::kPipelined ? capacity_ : chunks * capacity_;
  const std::size_t rounds = std::max<std::size_t>(1, ceil_div(longest, std::max<std::size_t>(1, blocks ? capacity_ : region)));
  at.rounds = static_cast<int>(rounds);
  pipelined_ = Flow::kPipelined;
  if (keeps_accumulators(f, at)) lanes_.scratch.resize(chunks * capacity_ * acc_bytes_);

  Status outcome;
  const auto listen = [&](const Step& s) {
    if (outcome.ok()) outcome = hop(s);
  };
  if constexpr (Flow::kPipelined) {
    begin_ = 0, end_ = total_, piece_ = capacity_;
    f(at, listen);
    return outcome;
  }
  for (round_index_ = 0; round_index_ < rounds && outcome.ok(); ++round_index_) {
    if (!blocks) {
      begin_ = round_index_ * region, end_ = std::min(total_, begin_ + region);
      // Whole lines each, so that slices of different ranks do not share one.
      const std::size_t line = std::max<std::size_t>(1, kLine / elem_);
      piece_ = std::min(capacity_, ceil_div(ceil_div(end_ - begin_, chunks), line) * line);
    }
    page_open_ = posted;
    f(at, listen);
    if (Flow::kBoards && n_ > 1 && outcome.ok()) end_round();
  }
  return outcome;
}

void HostExecutor::plan_blocks() {
  const auto n = static_cast<std::size_t>(n_);
  const Operation& o = *op_;
  total_ = unit_count(o, rank_, n_);
  if (!o.blocks()) return;
  const auto even = [&](std::vector<std::size_t>& offsets, std::vector<std::size_t>& counts, bool many) {
    counts.assign(n, total_);
    offsets.assign(n, 0);
    for (std::size_t b = 0; many && b < n; ++b) offsets[b] = b * total_;
  };
  const auto uneven = [&](std::vector<std::size_t>& offsets, std::vector<std::size_t>& counts,
                          const std::vector<std::size_t>& given, bool many) {
    counts = given;
    offsets.assign(n, 0);
    for (std::size_t b = 1; many && b < n; ++b) offsets[b] = offsets[b - 1] + given[b - 1];
  };
  const bool in_many = o.collective != Collective::all_gather && o.collective != Collective::gather;
  const bool out_many = o.collective != Collective::reduce_scatter && o.collective != Collective::scatter;
  if (!o.uneven) {
    even(in_offsets_, in_counts_, in_many);
    even(out_offsets_, out_counts_, out_many);
    return;
  }
  uneven(in_offsets_, in_counts_, o.in_counts.empty() ? o.out_counts : o.in_counts, in_many);
  uneven(out_offsets_, out_counts_, o.out_counts.empty() ? o.in_counts : o.out_counts, out_many);
}

HostExecutor::Extent HostExecutor::piece_of(const std::vector<std::size_t>& offsets, const std::vector<std::size_t>& counts, int chunk) const {
  const auto c = static_cast<std::size_t>(chunk);
  const std::size_t skip = std::min(counts[c], round_index_ * capacity_);
  return {offsets[c] + skip, std::min(counts[c] - skip, capacity_)};
}
HostExecutor::Extent HostExecutor::in_extent(int chunk) const {
  if (op_->blocks()) return piece_of(in_offsets_, in_counts_, chunk);
  const std::size_t from = std::min(end_, begin_ + static_cast<std::size_t>(chunk) * piece_);
  return {from, std::min(piece_, end_ - from)};
}
HostExecutor::Extent HostExecutor::out_extent(int chunk) const {
  return op_->blocks() ? piece_of(out_offsets_, out_counts_, chunk) : in_extent(chunk);
}

Status HostExecutor::hop(const Step& s) {
  if (s.verb & (flow::kPost | flow::kPosted | flow::kMeet | flow::kSpread)) return hop_board(s);
  return hop_link(s);
}

// ---- links ----------------------------------------------------------------------------------------

Status HostExecutor::await_input(LinkEnd& link, int from, std::size_t bytes, std::size_t total) {
  OURO_TRY(host_.waiter().until(*link.view.full, link.next + 1));
  const SlotHeader header = link.view.header(link.next);  // a copy: the peer could change it under us
  if (header.seq != seq_ || header.signature != signature_) return host_.disagreement(from, header.seq, header.signature);
  if (header.total != total)
    return Status(Failure{.reason = Reason::mismatch, .text = fmt::format("it sends {} elements where {} are expected", header.total, total),
                          .rank = from, .detector = "slot header"});
  if (header.bytes != bytes)
    return Status(Failure{.reason = Reason::ring_corrupt, .text = fmt::format("a slot of {} bytes where {} are expected", header.bytes, bytes),
                          .rank = from, .detector = "slot header"});
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
    if (s.verb & flow::kKeep) kernels::widen(reduction_, acc_at(s.chunk), in_at(in), in.count);
    else if (s.verb & flow::kAcc) kernels::finish(reduction_, out_at(out), acc_at(s.chunk), out.count);
    else if (s.verb & flow::kWideIn) {
      const void* source = in_at(in);
      kernels::fold(reduction_, out_at(out), {&source, 1}, {&reduction_.premul, 1}, out.count);
    } else place(out_at(out), in_at(in), out.count * elem_);
    return {};
  }
  const bool wide = (s.verb & flow::kWideIn) != 0;
  // A pure forward of a reduction neither stores nor has an output here: its size is the input's.
  const std::size_t count = s.verb & flow::kStore ? out.count : s.verb & flow::kInput ? in.count : in_extent(s.chunk).count;
  if (uneven_pairs && round_index_ > 0 && count == 0) return {};
  LinkEnd& from = lanes_.in[static_cast<std::size_t>(s.from)];
  OURO_TRY(await_input(from, s.from, count * (wide ? acc_bytes_ : elem_), uneven_pairs ? out_counts_[static_cast<std::size_t>(s.chunk)] : 0));
  const std::byte* got = from.view.payload(from.next);
  LinkEnd* to = s.verb & flow::kSend ? &lanes_.out[static_cast<std::size_t>(s.to)] : nullptr;
  if (to) OURO_TRY(host_.waiter().until(*to->view.freed, to->next >= to->view.slot_count ? to->next + 1 - to->view.slot_count : 0));
  std::byte* slot = to ? to->view.payload(to->next) : nullptr;
  if (!wide) {
    if (s.verb & flow::kStore) place(out_at(out), got, count * elem_);
    if (to) place(slot, got, count * elem_);
  } else {
    const bool acc = (s.verb & flow::kAcc) != 0;
    if (s.verb & flow::kStore) {
      if (acc) kernels::reduce_acc_finish(reduction_, out_at(out), got, acc_at(s.chunk), count);
      else if (!(s.verb & flow::kInput)) kernels::finish(reduction_, out_at(out), got, count);
      else kernels::reduce_input_finish(reduction_, out_at(out), got, in_at(in), count);
      if (to) place(slot, out_at(out), count * elem_);
    } else {
      void* sink = s.verb & flow::kKeep ? static_cast<void*>(acc_at(s.chunk)) : slot;
      if (acc) kernels::reduce_acc(reduction_, sink, got, acc_at(s.chunk), s.weight, count);
      else kernels::reduce_input(reduction_, sink, got, in_at(in), s.weight, count);
    }
  }
  publish(*from.view.freed, ++from.next);
  if (to) {
    const std::size_t bytes = count * (s.verb & flow::kWideOut ? acc_bytes_ : elem_);
    to->view.header(to->next) = {seq_, signature_, 0, static_cast<std::uint32_t>(bytes), 0};
    publish(*to->view.full, ++to->next);
  }
  return {};
}

Status HostExecutor::send_slot(const Step& s, Extent e) {
  LinkEnd& to = lanes_.out[static_cast<std::size_t>(s.to)];
  OURO_TRY(host_.waiter().until(*to.view.freed, to.next >= to.view.slot_count ? to.next + 1 - to.view.slot_count : 0));
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
  to.view.header(to.next) = {seq_, signature_, uneven_pairs ? in_counts_[static_cast<std::size_t>(s.chunk)] : 0,
                             static_cast<std::uint32_t>(bytes), 0};
  publish(*to.view.full, ++to.next);
  return {};
}

// ---- boards ---------------------------------------------------------------------------------------

/// Before anything is written to this round's page: everyone has finished the round that used it last.
Status HostExecutor::open_page() {
  if (page_open_) return {};
  const std::uint64_t k = lanes_.round;
  if (k >= BoardView::kPages)
    for (int r = 0; r < n_; ++r) {
      auto& known = lanes_.known_done[static_cast<std::size_t>(r)];
      const std::uint64_t need = k + 1 - BoardView::kPages;
      if (r == rank_ || known >= need) continue;
      Counter& done = *lanes_.board[static_cast<std::size_t>(r)].done;
      OURO_TRY(host_.waiter().until(done, need));
      known = load(done);
    }
  page_open_ = true;
  Card& card = lanes_.board[static_cast<std::size_t>(rank_)].card(k);
  card = {seq_, signature_, 0, op_->op.scalar.real, op_->op.scalar.integer, {}, {}};
  return {};
}

void HostExecutor::post_phase(int phase) {
  publish(*lanes_.board[static_cast<std::size_t>(rank_)].posted, 2 * lanes_.round + static_cast<std::uint64_t>(phase));
}

Status HostExecutor::wait_posted(int from, int phase) {
  const BoardView& b = lanes_.board[static_cast<std::size_t>(from)];
  const std::uint64_t k = lanes_.round;
  OURO_TRY(host_.waiter().until(*b.posted, 2 * k + static_cast<std::uint64_t>(phase)));
  // Who has come to round k has finished all before it: no need to ask for its `done` then.
  auto& known = lanes_.known_done[static_cast<std::size_t>(from)];
  known = std::max(known, k);
  if (const Card& card = b.card(k); card.seq != seq_ || card.signature != signature_)
    return host_.disagreement(from, card.seq, card.signature);
  return {};
}

void HostExecutor::end_round() {
  publish(*lanes_.board[static_cast<std::size_t>(rank_)].done, ++lanes_.round);
  page_open_ = false;
}

/// Posts where this rank's buffers lie, reads where all others' do; everyone comes to the same conclusion.
Status HostExecutor::ask_in_place(bool* all_registered) {
  OURO_TRY(host_.need_boards());
  page_open_ = false;
  OURO_TRY(open_page());
  const Operation& o = *op_;
  const bool aliased = o.collective == Collective::all_to_all && o.in.data == o.out.data;
  const bool spreads = o.collective == Collective::all_reduce;
  Card& mine = lanes_.board[static_cast<std::size_t>(rank_)].card(lanes_.round);
  if (!aliased) {
    mine.in = context_.find(o.in.data, o.in.bytes());
    if (spreads) mine.out = context_.find(o.out.data, o.out.bytes());
  }
  post_phase(1);
  const bool root_only = o.collective == Collective::broadcast || o.collective == Collective::scatter;
  *all_registered = true;
  for (int r = 0; r < n_; ++r) {
    if (r != rank_) OURO_TRY(wait_posted(r, 1));
    const Card& card = lanes_.board[static_cast<std::size_t>(r)].card(lanes_.round);
    if (root_only && r != o.root) continue;
    if (card.in.id == 0 || (spreads && card.out.id == 0)) *all_registered = false;
  }
  if (!*all_registered) return {};
  inputs_.assign(static_cast<std::size_t>(n_), {});
  outputs_.assign(static_cast<std::size_t>(n_), {});
  // Block collectives with one block a side read at most that many bytes of the others' inputs.
  const bool many = o.collective == Collective::scatter || o.collective == Collective::all_to_all || o.collective == Collective::reduce_scatter;
  const std::size_t in_bytes = total_ * elem_ * (many ? static_cast<std::size_t>(n_) : 1);
  for (int r = 0; r < n_; ++r) {
    if (root_only && r != o.root) continue;
    const Card& card = lanes_.board[static_cast<std::size_t>(r)].card(lanes_.round);
    auto in = context_.resolve(host_.world_rank(r), card.in, in_bytes);
    if (!in.ok()) return in.status();
    inputs_[static_cast<std::size_t>(r)] = std::move(*in);
    if (!spreads) continue;
    auto out = context_.resolve(host_.world_rank(r), card.out, in_bytes);
    if (!out.ok()) return out.status();
    outputs_[static_cast<std::size_t>(r)] = std::move(*out);
  }
  return {};
}

/// Where chunk `at` of what `from` posted lies; `mine` gives the place in the buffer where it is read by reference.
Result<const std::byte*> HostExecutor::posted_at(int from, const Step& s, Extent at) {
  OURO_TRY(wait_posted(from, s.verb & flow::kResult ? 2 : 1));
  if (by_reference_) return inputs_[static_cast<std::size_t>(from)].data + at.offset * elem_;
  const BoardView& b = lanes_.board[static_cast<std::size_t>(from)];
  const std::uint64_t first = b.card(lanes_.round).first;
  const std::size_t piece = s.verb & flow::kResult ? parts_ - 1 : static_cast<std::size_t>(s.at) - first;
  if (piece >= parts_)
    return Status(Failure{.reason = Reason::ring_corrupt, .text = fmt::format("chunk {} is not on its board", s.at), .rank = from, .detector = "card"});
  return b.page(lanes_.round) + piece * (b.page_bytes / parts_ / kLine * kLine);
}

Status HostExecutor::hop_board(const Step& s) {
  const BoardView& mine = lanes_.board[static_cast<std::size_t>(rank_)];
  if (s.verb & flow::kMeet) {
    OURO_TRY(open_page());
    post_phase(2);
    for (int r = 0; r < n_; ++r)
      if (r != rank_) OURO_TRY(wait_posted(r, 2));
    return {};
  }
  if (s.verb & flow::kPost) {
    if (by_reference_) return {};  // posted when the group was asked
    OURO_TRY(open_page());
    const std::size_t piece = mine.page_bytes / parts_ / kLine * kLine;
    std::byte* page = mine.page(lanes_.round);
    if (s.verb & flow::kResult) {
      const Extent e = out_extent(s.chunk);
      place(page + (parts_ - 1) * piece, out_at(e), e.count * elem_);
      post_phase(2);
      return {};
    }
    mine.card(lanes_.round).first = static_cast<std::uint64_t>(s.chunk);
    for (int i = 0; i < s.span; ++i) {
      const Extent e = in_extent(s.chunk + i);
      place(page + static_cast<std::size_t>(i) * piece, in_at(e), e.count * elem_);
    }
    post_phase(1);
    return {};
  }
  // kPosted: the value comes from one board, or from all of them.
  const Extent out = out_extent(s.chunk);
  const Extent at = by_reference_ && op_->blocks() ? piece_of(in_offsets_, in_counts_, s.at) : out;
  if (s.from != flow::kEveryone) {
    auto source = posted_at(s.from, s, at);
    if (!source.ok()) return source.status();
    place(out_at(out), *source, out.count * elem_);
    return {};
  }
  sources_.resize(static_cast<std::size_t>(n_));
  factors_.resize(static_cast<std::size_t>(n_));
  for (int r = 0; r < n_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r == rank_) {  // my own input is at hand, posted or not
      sources_[i] = in_at(op_->blocks() ? piece_of(in_offsets_, in_counts_, s.at) : in_extent(s.at));
      factors_[i] = op_->op.scalar;
      continue;
    }
    auto source = posted_at(r, s, at);
    if (!source.ok()) return source.status();
    sources_[i] = *source;
    const Card& card = lanes_.board[i].card(lanes_.round);
    factors_[i] = {card.premul_real, card.premul_integer};
  }
  if (!(s.verb & flow::kSpread)) {
    kernels::fold(reduction_, out_at(out), sources_, factors_, out.count);
    return {};
  }
  // Block by block, so that what is spread is still in the cache.
  const std::size_t block = std::max<std::size_t>(1, kSpreadBytes / elem_);
  for (std::size_t from = 0; from < out.count; from += block) {
    const Extent e{out.offset + from, std::min(block, out.count - from)};
    kernels::fold(reduction_, out_at(e), sources_, factors_, e.count);
    for (int r = 0; r < n_; ++r)
      if (r != rank_) place(outputs_[static_cast<std::size_t>(r)].data + e.offset * elem_, out_at(e), e.count * elem_);
    for (const void*& source : sources_) source = static_cast<const std::byte*>(source) + e.count * elem_;
  }
  return {};
}

}  // namespace ouro::rt
