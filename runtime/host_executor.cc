// The host executor. See host_executor.h; the steps' meaning is in runtime/flow/step.h.
#include "runtime/host_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ouro::rt {
namespace {

using flow::Step;

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// The most chunks that any rank posts at once, and whether results are posted too: into how many pieces a
/// page is cut. Heard from the root and its neighbour, which between them stand for all ranks.
template <class Flow>
std::size_t page_parts(const Flow& f, flow::Place at) {
  int span = 1, result = 0;
  for (int rank : {at.root, flow::wrap(at.root + 1, at.size)}) {
    at.rank = rank;
    f(at, [&](const Step& s) {
      if (!(s.verb & flow::kPost)) return;
      if (s.verb & flow::kResult)
        result = 1;
      else
        span = std::max(span, s.span);
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

Status HostExecutor::run(const Operation& op, const Choice& choice, std::uint64_t seq,
                         std::uint64_t signature) {
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
      return invalid(fmt::format("{}: algorithm 'inplace' needs buffers from ouro::alloc on every rank",
                                 name(op.collective)));
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
  const std::size_t rounds =
      std::max<std::size_t>(1, ceil_div(longest, std::max<std::size_t>(1, blocks ? capacity_ : region)));
  pipelined_ = Flow::kPipelined;
  // Heard from one round, which has all verbs; flows over boards keep nothing.
  if (!Flow::kBoards && keeps_accumulators(f, at)) lanes_.scratch.resize(chunks * capacity_ * acc_bytes_);
  at.rounds = static_cast<int>(rounds);

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

HostExecutor::Extent HostExecutor::piece_of(const std::vector<std::size_t>& offsets,
                                            const std::vector<std::size_t>& counts, int chunk) const {
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

}  // namespace ouro::rt
