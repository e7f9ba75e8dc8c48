// The host executor. See host_executor.h; the steps' meaning is in kernels/flow/step.h.
#include "runtime/exec/host/host_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/flow/gossip.h"
#include "kernels/flow/hierarchy.h"
#include "kernels/host/copy.h"

namespace ouro::rt {
namespace {

using flow::Step;

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

std::uint32_t fold32(std::uint64_t x) { return static_cast<std::uint32_t>(x ^ x >> 32); }

/// A mix whose weights are all 1/n, as computed in double: summed up and divided once. A product with a
/// rounded 1/n each would not give ten times 1 the mean 1.
bool is_mean(const Operation& op) {
  if (op.collective != Collective::mix || op.in_neighbours.empty()) return false;
  const double share = 1 / static_cast<double>(op.in_neighbours.size() + 1);
  return op.op.scalar.real == share && std::all_of(op.in_neighbours.begin(), op.in_neighbours.end(),
                                                   [&](const auto& take) { return take.second == share; });
}

}  // namespace

HostExecutor::HostExecutor(Context& context, Host& host, Lanes& lanes, int rank, int size)
    : context_(context),
      host_(host),
      lanes_(lanes),
      rank_(rank),
      n_(size),
      sources_(static_cast<std::size_t>(size)),
      posted_(static_cast<std::size_t>(size)),
      factors_(static_cast<std::size_t>(size)) {}

void HostExecutor::prepare(const Plan& plan) {
  const Operation& op = plan.op;
  const DType t = op.dtype(rank_);
  elem_ = op.collective == Collective::barrier ? 1 : size_of(t);
  reduction_ = {t, op.reduces() ? op.op.kind : OpKind::sum, n_, op.op.scalar};
  if (is_mean(op)) reduction_ = {t, OpKind::avg, static_cast<int>(op.in_neighbours.size()) + 1};
  if (op.reduces()) fold_ = kernels::Fold(reduction_);
  acc_bytes_ = op.reduces() ? kernels::accumulator_bytes(t, reduction_.op) : elem_;
  total_ = unit_count(op, rank_, n_);
  blocks_ = op.blocks();
  if (blocks_) sides_.lay_out(op, static_cast<std::size_t>(n_), total_);
  streams_ = plan.choice.streams;
  staged_ = plan.choice.staging;
  forced_pull_ = plan.choice.algorithm == flow::Algorithm::pull;
  may_refer_ = n_ > 1 && (plan.choice.try_zero_copy || plan.choice.algorithm == flow::Algorithm::zerocopy);
  may_pull_ = n_ > 1 && (plan.choice.try_pull || forced_pull_);
  candidate_ = may_refer_ || may_pull_;
  depth_ = StagingView::kSlots;
  runner_ = nullptr;
  flow::visit_all(op.collective, plan.choice.algorithm,
                  [this]<class Flow>(Flow) { runner_ = &HostExecutor::run_flow<Flow>; });
  if (op.collective == Collective::mix) runner_ = &HostExecutor::run_flow<flow::Gossip>;
  cut_for_ = nullptr;
  prepared_ = plan.id;
}

void HostExecutor::begin(const Plan& plan, std::uint64_t seq) {
  op_ = &plan.op, seq_ = seq, signature_ = plan.folded;
  tag_ = fold32(signature_ ^ seq * 0x9e3779b97f4a7c15);
  base_ = opened_ = lanes_.round;
  if (plan.id == 0 || plan.id != prepared_) prepare(plan);
}

/// Whether a batch's operations can run as one is a matter of each rank's buffers and streams: each says so
/// on its arrival record, in the first round of the operation. One that cannot need not hear what others say.
Status HostExecutor::agree(bool* all_can) {
  OURO_TRY(host_.need_staging());
  OURO_TRY(open_slot(lanes_.round));
  const StagingView& mine = lanes_.staging_of[static_cast<std::size_t>(rank_)];
  mine.arrival(lanes_.round).in = {*all_can ? kAsOne : kNotRegistered, 0};
  mine.publish(lanes_.round, StagingView::kReferred, tag_);
  for (int r = 0; r < n_ && *all_can; ++r) {
    if (r == rank_) continue;
    OURO_TRY(wait_for(r, lanes_.round, StagingView::kReferred));
    *all_can = lanes_.staging_of[static_cast<std::size_t>(r)].arrival(lanes_.round).in.id == kAsOne;
  }
  return {};
}

Status HostExecutor::run_as_one(const Plan& plan, std::uint64_t seq, bool* can) {
  begin(plan, seq);
  OURO_TRY(agree(can));
  return *can ? (this->*runner_)() : end_round();
}

Status HostExecutor::run(const Plan& plan, std::uint64_t seq) {
  begin(plan, seq);
  if (!candidate_) return (this->*runner_)();
  const bool must = plan.choice.algorithm == flow::Algorithm::zerocopy || forced_pull_;
  Path path = Path::staged;
  OURO_TRY(refer(must, &path));
  if (must && path == Path::staged) {
    OURO_TRY(end_round());
    return forced_pull_
               ? Status(Reason::unsupported,
                        fmt::format("{}: algorithm 'pull' needs ranks that may read each other's memory",
                                    name(op_->collective)))
               : invalid(
                     fmt::format("{}: algorithm 'zerocopy' needs buffers from Context::alloc on every rank",
                                 name(op_->collective)));
  }
  if (path == Path::staged) return (this->*runner_)();
  Status outcome;
  flow::visit(op_->collective, path == Path::pull ? flow::Algorithm::pull : flow::Algorithm::zerocopy,
              [&]<class Flow>(Flow) { outcome = run_flow<Flow>(); });
  inputs_.clear();
  outputs_.clear();
  return outcome;
}

template <class Flow>
Flow HostExecutor::make() const {
  Flow made;
  if constexpr (std::is_same_v<Flow, flow::Gossip>)
    made.self = op_->op.scalar.real, made.in_neighbours = op_->in_neighbours,
    made.out_neighbours = op_->out_neighbours;
  if constexpr (requires { made.nodes; }) made.nodes = host_.nodes();
  return made;
}

/// Decides how large a chunk is and how many rounds there are.
template <class Flow>
void HostExecutor::cut() {
  pipelined_ = Flow::kPipelined;
  by_reference_ = Flow::kByReference && n_ > 1;
  pulls_ = Flow::kPulls && n_ > 1;
  posts_others_ = Flow::kPostsOthers;
  ahead_ = 0;
  if (Flow::kPipelined) ahead_ = static_cast<std::uint64_t>((Flow::kPostsResult ? 2 : 1) * flow::kStagingLag);
  const std::size_t longest = blocks_ ? sides_.longest() : total_;
  const auto chunks = static_cast<std::size_t>(make<Flow>().chunks({rank_, n_, op_->root, 1}));
  per_round_ = chunks;
  on_ = On::slot;
  depth_ = StagingView::kSlots;
  if (n_ == 1 || by_reference_) {
    capacity_ = std::max<std::size_t>(1, blocks_ ? longest : ceil_div(total_, chunks));
  } else if (Flow::kStaging) {
    const std::size_t posted = Flow::kPostsOthers ? static_cast<std::size_t>(n_ - 1) : 1;
    const std::size_t bytes = longest * elem_;
    const std::size_t slot = lanes_.staging_of[0].slot_bytes;
    if (!Flow::kPostsResult && bytes <= Arrival::kInline / posted)
      on_ = On::arrival;
    else if (Flow::kRooted &&
             (bytes + kLine - 1) / kLine * kLine <= lanes_.staging_of[0].eager_bytes / posted)
      on_ = On::eager;
    if (on_ != On::slot) depth_ = StagingView::kArrivals;
    last_piece_ = static_cast<int>(posted);
    stride_ = on_ == On::arrival ? bytes
              : on_ == On::eager ? (bytes + kLine - 1) / kLine * kLine
                                 : std::min(slot / (posted + Flow::kPostsResult) / kLine * kLine,
                                            (bytes + kLine - 1) / kLine * kLine);  // small ones side by side
    capacity_ = on_ == On::arrival ? std::max<std::size_t>(1, longest) : stride_ / elem_;
  } else {
    capacity_ = lanes_.out[0].view.slot_bytes / kLine * kLine / std::max(elem_, acc_bytes_);
  }
  const std::size_t at_once = blocks_ ? capacity_ : chunks * capacity_;
  const std::size_t rounds = longest <= at_once ? 1 : ceil_div(longest, at_once);
  rounds_ = static_cast<int>(rounds);
  if (blocks_) {
    piece_ = capacity_;
  } else {
    // Whole lines each, so that slices of different ranks do not share one; and rounds of equal size.
    const std::size_t line = std::max<std::size_t>(1, kLine / elem_);
    piece_ = std::min(capacity_, ceil_div(ceil_div(total_, chunks * rounds), line) * line);
  }
  if (Flow::kKeeps) lanes_.scratch.resize(chunks * capacity_ * acc_bytes_);
  cut_for_ = &HostExecutor::run_flow<Flow>;
}

/// Whether the operation is a single round of even blocks in one buffer; fills in what run_once() reads.
template <class Flow>
bool HostExecutor::plan_once() {
  if (n_ == 1 || rounds_ > 1 || candidate_ || streams_ || op_->uneven || !op_->segments.empty()) return false;
  const Collective c = op_->collective;
  const bool root = rank_ == op_->root,
             all_read = !Flow::kRooted || (root && (c == Collective::reduce || c == Collective::gather));
  posts_ = posts_in_staging();
  copies_own_ = !op_->reduces() && (!Flow::kRooted || root);
  sources_to_hear_ = all_read ? n_ - 1 : posts_ ? 0 : 1;
  const std::size_t bytes = total_ * elem_;
  in_step_ = posts_others_ ? bytes : 0;
  out_step_ =
      c == Collective::all_gather || c == Collective::gather || c == Collective::all_to_all ? bytes : 0;
  return true;
}

template <class Flow>
Status HostExecutor::run_flow() {
  if (cut_for_ != &HostExecutor::run_flow<Flow>) {
    if (n_ > 1) OURO_TRY(Flow::kStaging ? host_.need_staging() : host_.need_links());
    cut<Flow>();
  }
  if constexpr (std::is_base_of_v<flow::Staged, Flow> && !Flow::kPostsResult)
    if (plan_once<Flow>()) {  // directly from the next operation of this plan on
      runner_ = &HostExecutor::run_once;
      return run_once();
    }
  if (!Flow::kStaging && candidate_) OURO_TRY(end_round());

  Status outcome;
  const flow::Place at{rank_, n_, op_->root, rounds_};
  const auto listen = [&](const Step& s) {
    if (!outcome.ok()) return;
    if (Status hopped = hop(s); !hopped.ok()) outcome = std::move(hopped);
  };
  round_index_ = 0;
  const Flow flow = make<Flow>();
  if constexpr (Flow::kPipelined) {
    flow(at, listen);
  } else {
    for (; round_index_ < static_cast<std::size_t>(rounds_) && outcome.ok(); ++round_index_) {
      flow(at, listen);
      if (Flow::kStaging && n_ > 1 && outcome.ok()) outcome = end_round();
    }
  }
  if (streams_) kernels::stream_fence();
  return outcome;
}

/// What the steps of a staged flow come to in a single round: one post, one wait for each rank that posts
/// too, a fold or copies.
Status HostExecutor::run_once() {
  const std::uint64_t round = base_;
  const std::size_t bytes = total_ * elem_;
  const auto* const in = static_cast<const std::byte*>(op_->in.data);
  auto* const out = static_cast<std::byte*>(op_->out.data);
  const auto me = static_cast<std::size_t>(rank_);
  const bool reduces = op_->reduces(), premul = reduction_.op == OpKind::premulsum;
  if (posts_) {
    OURO_TRY(open_slot(round));
    const StagingView& mine = lanes_.staging_of[me];
    std::byte* piece = piece_on(mine, round, 0);
    if (!posts_others_) kernels::copy_shared(piece, in, bytes);
    for (int d = 1; posts_others_ && d < n_; ++d, piece += stride_)
      kernels::copy_shared(piece, in + static_cast<std::size_t>(flow::wrap(rank_ + d, n_)) * bytes, bytes);
    mine.publish(round, StagingView::kPosted, tag_);
  }
  if (copies_own_) place(out + me * out_step_, in + me * in_step_, bytes);
  for (int d = 1; d <= sources_to_hear_; ++d) {
    const int from = sources_to_hear_ == n_ - 1 ? flow::wrap(rank_ + d, n_) : op_->root;
    const auto i = static_cast<std::size_t>(from);
    const StagingView& theirs = lanes_.staging_of[i];
    OURO_TRY(wait_for(from, round, StagingView::kPosted));
    const int position = posts_others_ ? flow::wrap(rank_ - from - 1, n_) : 0;
    const std::byte* const piece = piece_on(theirs, round, static_cast<std::size_t>(position));
    if (reduces)
      sources_[i] = piece;
    else
      std::memcpy(out + i * out_step_, piece, bytes);
    if (premul) factors_[i] = {theirs.arrival(round).premul_real, theirs.arrival(round).premul_integer};
  }
  if (sources_to_hear_ == n_ - 1)
    all_released_ = std::max(all_released_, round);  // who posts has released all before
  if (reduces && sources_to_hear_ > 0) {
    sources_[me] = in + me * in_step_;
    factors_[me] = op_->op.scalar;
    fold_(out, sources_, factors_, total_);
  }
  return end_round();
}

Extent HostExecutor::region(int chunk) const {
  const std::size_t i = round_index_ * per_round_ + static_cast<std::size_t>(chunk);
  const std::size_t from = std::min(total_, i * piece_);
  return {from, std::min(piece_, total_ - from)};
}

}  // namespace ouro::rt
