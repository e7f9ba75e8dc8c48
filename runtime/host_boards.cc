// The host executor's hops over boards. See host_executor.h; the steps' meaning is in runtime/flow/step.h.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/host_executor.h"

namespace ouro::rt {

using flow::Step;

namespace {
constexpr std::size_t kSpreadBytes = 8 << 10;  // of one block that is reduced, then written to all outputs
}  // namespace

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
  publish(*lanes_.board[static_cast<std::size_t>(rank_)].posted,
          2 * lanes_.round + static_cast<std::uint64_t>(phase));
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
  const bool many = o.collective == Collective::scatter || o.collective == Collective::all_to_all ||
                    o.collective == Collective::reduce_scatter;
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

/// Where chunk `at` of what `from` posted lies; `mine` gives the place in the buffer where it is read by
/// reference.
Result<const std::byte*> HostExecutor::posted_at(int from, const Step& s, Extent at) {
  OURO_TRY(wait_posted(from, s.verb & flow::kResult ? 2 : 1));
  if (by_reference_) return inputs_[static_cast<std::size_t>(from)].data + at.offset * elem_;
  const BoardView& b = lanes_.board[static_cast<std::size_t>(from)];
  const std::uint64_t first = b.card(lanes_.round).first;
  const std::size_t piece = s.verb & flow::kResult ? parts_ - 1 : static_cast<std::size_t>(s.at) - first;
  if (piece >= parts_)
    return Status(Failure{.reason = Reason::ring_corrupt,
                          .text = fmt::format("chunk {} is not on its board", s.at),
                          .rank = from,
                          .detector = "card"});
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
      if (r != rank_)
        place(outputs_[static_cast<std::size_t>(r)].data + e.offset * elem_, out_at(e), e.count * elem_);
    for (const void*& source : sources_) source = static_cast<const std::byte*>(source) + e.count * elem_;
  }
  return {};
}

}  // namespace ouro::rt
