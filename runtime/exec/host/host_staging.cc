// The host executor's hops over staging buffers. See host_executor.h; the steps' meaning is in
// kernels/flow/step.h.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/host/copy.h"
#include "runtime/exec/host/host_executor.h"
#include "transport/shm/reach.h"

namespace ouro::rt {

using flow::Step;

namespace {
// Bytes of a block that is reduced, then written to all outputs: what stays in the first-level cache.
constexpr std::size_t kSpreadBytes = 32 << 10;

/// Waits some 10 us for a root that has run as far ahead as it can to get room for many rounds: each look
/// takes the line of the counter away from the reader, who needs it for each round.
void look_seldom(const Counter& done, std::uint64_t at_least) {
  constexpr int kLooks = 16, kPauses = 32;
  for (int look = 0; look < kLooks && load(done) < at_least; ++look)
    for (int i = 0; i < kPauses; ++i) relax();
}
}  // namespace

/// Before anything is written to the slot of this round: everyone has released the round that used it last.
Status HostExecutor::open_slot(std::uint64_t round) {
  if (round < opened_) return {};
  if (round >= all_released_ + depth_) {
    std::uint64_t least = round;
    for (int r = 0; r < n_; ++r) {
      auto& known = lanes_.known_done[static_cast<std::size_t>(r)];
      const std::uint64_t need = round + 1 - depth_;
      if (r == rank_) continue;
      if (known < need) {
        Counter& done = *lanes_.staging_of[static_cast<std::size_t>(r)].done;
        if (depth_ == StagingView::kArrivals && context_.enough_cores())
          look_seldom(done, std::min(base_, need + depth_ / 2));
        OURO_TRY(host_.waiter().until(done, need));
        known = load(done);
      }
      least = std::min(least, known);
    }
    all_released_ = least;
  }
  opened_ = round + 1;
  Arrival& arrival = lanes_.staging_of[static_cast<std::size_t>(rank_)].arrival(round);
  if (reduction_.op == OpKind::premulsum) {
    arrival.premul_real = op_->op.scalar.real;
    arrival.premul_integer = op_->op.scalar.integer;
  }
  return {};
}

Status HostExecutor::wait_long(int from, std::uint64_t round, StagingView::Phase phase) {
  const StagingView& b = lanes_.staging_of[static_cast<std::size_t>(from)];
  std::uint64_t& word = b.arrival(round).word;
  OURO_TRY(host_.waiter().until({&word, b.sleepers}, StagingView::serial(round, phase)));
  return heard(from, round, std::atomic_ref(word).load(std::memory_order_acquire));
}

Status HostExecutor::end_round() {
  met_ = false;
  const StagingView& mine = lanes_.staging_of[static_cast<std::size_t>(rank_)];
  const std::uint64_t round = ++lanes_.round;
  if (round % StagingView::kRenewal == 0) [[unlikely]]
    mine.renew(round);
  publish(*mine.done, round);
  return {};
}

// ---- by reference ---------------------------------------------------------------------------------

/// Fills in where this rank's buffers lie; false if they are not registered, or must not be used in place.
bool HostExecutor::refers(Arrival& arrival) const {
  const Operation& o = *op_;
  if (o.collective == Collective::all_to_all && o.in.data == o.out.data) return false;
  const flow::Buffers needs = flow::zero_copy_buffers(o.collective);
  const bool in = needs.inputs && (!needs.root_input_only || rank_ == o.root);
  if (in) arrival.in = context_.find(o.in.data, o.in.bytes());
  if (needs.outputs) arrival.out = context_.find(o.out.data, o.out.bytes());
  return (!in || arrival.in.id != 0) && (!needs.outputs || arrival.out.id != 0);
}

/// Whether the staged flow that follows has this rank post inputs in its first round.
bool HostExecutor::posts_in_staging() const {
  switch (op_->collective) {
    case Collective::broadcast:
    case Collective::scatter:
      return rank_ == op_->root;
    case Collective::reduce:
    case Collective::gather:
      return rank_ != op_->root;
    default:
      return true;
  }
}

/// Fills in the addresses of this rank's buffers for others to copy from; false if that is not worth it, or
/// not allowed.
bool HostExecutor::offers(Arrival& arrival) const {
  const Operation& o = *op_;
  if (!may_pull_ || (o.collective == Collective::all_to_all && o.in.data == o.out.data)) return false;
  const flow::Buffers needs = flow::pull_buffers(o.collective);
  const bool in = needs.inputs && (!needs.root_input_only || rank_ == o.root);
  // Copying between processes pins every page that it touches: with small ones the staging buffers are
  // faster.
  if (!forced_pull_ && ((in && !device::on_huge_pages(o.in.data, o.in.bytes())) ||
                        (o.out.count > 0 && !device::on_huge_pages(o.out.data, o.out.bytes()))))
    return false;
  if (!context_.reaches(host_.world_ranks())) return false;
  arrival.in = {kAddress, reinterpret_cast<std::uint64_t>(o.in.data)};
  arrival.out = {kAddress, reinterpret_cast<std::uint64_t>(o.out.data)};
  return true;
}

/// A rank with buffers that others can reach says where they lie and waits to hear it of all others. One
/// without goes on at once: its first post of the staged flow, in this same round, says that there is nothing
/// to refer to.
Status HostExecutor::refer(bool must, Path* path) {
  OURO_TRY(host_.need_staging());
  OURO_TRY(open_slot(lanes_.round));
  const StagingView& mine = lanes_.staging_of[static_cast<std::size_t>(rank_)];
  Arrival& arrival = mine.arrival(lanes_.round);
  arrival.in = arrival.out = {};
  const bool reachable = (may_refer_ && refers(arrival)) || offers(arrival);
  if (!reachable) arrival.in = arrival.out = {kNotRegistered, 0};
  if (reachable || must || !staged_ || !posts_in_staging())
    mine.publish(lanes_.round, StagingView::kReferred, tag_);
  if (!reachable && !must) return {};
  bool all_registered = true, all_addresses = true;
  for (int r = 0; r < n_; ++r) {
    if (r != rank_) OURO_TRY(wait_for(r, lanes_.round, StagingView::kReferred));
    const std::uint64_t id = lanes_.staging_of[static_cast<std::size_t>(r)].arrival(lanes_.round).in.id;
    all_registered &= id != kNotRegistered && id != kAddress;
    all_addresses &= id == kAddress;
  }
  // Where some are registered and some are not, all go through the staging buffers.
  if (all_addresses) *path = Path::pull;
  if (!all_registered) return {};
  *path = Path::zero_copy;
  return resolve_all();
}

/// Copies out of the input of another rank, or its output, in its process; `offset` in bytes. What a peer
/// wrote on its arrival record is used to read that peer only.
Status HostExecutor::bring(int from, bool result, std::size_t offset, void* to, std::size_t bytes) const {
  const Arrival& arrival = lanes_.staging_of[static_cast<std::size_t>(from)].arrival(lanes_.round);
  const std::uint64_t at = (result ? arrival.out : arrival.in).offset + offset;
  const Peer& peer = context_.peer(host_.world_rank(from));
  Status s = device::read_process(peer.pid, peer.pidfd.get(), at, to, bytes);
  if (s.ok()) return s;
  Failure f = *s.failure();
  f.rank = from;
  return Status(std::move(f));
}

/// Tile by tile: the others' parts are copied to tiles that stay in the cache, and folded from there.
Status HostExecutor::reduce_remote(const Step& s) {
  constexpr std::size_t kTileBytes = 128 << 10;
  const Extent out = out_extent(s.chunk), in = in_extent(s.at);
  const std::size_t some = kTileBytes / elem_;
  lanes_.scratch.resize(static_cast<std::size_t>(n_) * kTileBytes);
  for (std::size_t done = 0; done < out.count; done += some) {
    const std::size_t count = std::min(some, out.count - done);
    for (int r = 0; r < n_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const Extent part{in.offset + done, count};
      if (reduction_.op == OpKind::premulsum) {
        const Arrival& arrival = lanes_.staging_of[i].arrival(lanes_.round);
        factors_[i] = r == rank_ ? op_->op.scalar : Scalar{arrival.premul_real, arrival.premul_integer};
      }
      if (r == rank_) {
        sources_[i] = in_at(part);
        continue;
      }
      std::byte* const tile = lanes_.scratch.data() + i * kTileBytes;
      OURO_TRY(bring(r, false, part.offset * elem_, tile, count * elem_));
      sources_[i] = tile;
    }
    fold(out_at({out.offset + done, count}), count);
  }
  return {};
}

Status HostExecutor::resolve_all() {
  const Operation& o = *op_;
  const flow::Buffers needs = flow::zero_copy_buffers(o.collective);
  const auto n = static_cast<std::size_t>(n_);
  inputs_.assign(n, {});
  outputs_.assign(n, {});
  const bool in_blocks =
      blocks_ && o.collective != Collective::all_gather && o.collective != Collective::gather;
  const std::size_t in_bytes = total_ * elem_ * (in_blocks ? n : 1);
  const std::size_t out_bytes = total_ * elem_ * (o.collective == Collective::all_gather ? n : 1);
  for (int r = 0; r < n_; ++r) {
    // References, not the arrival record: its owner may come to the barrier, and say so, while this rank
    // still looks.
    const Arrival& arrival = lanes_.staging_of[static_cast<std::size_t>(r)].arrival(lanes_.round);
    const MemoryRef in = arrival.in, out = arrival.out;
    const auto take = [&](MemoryRef ref, std::size_t bytes, Context::Resolved& into) -> Status {
      auto resolved = context_.resolve(host_.world_rank(r), ref, bytes);
      if (!resolved.ok()) return resolved.status();
      into = std::move(*resolved);
      return {};
    };
    const auto i = static_cast<std::size_t>(r);
    if (needs.inputs && (!needs.root_input_only || r == o.root)) OURO_TRY(take(in, in_bytes, inputs_[i]));
    if (needs.outputs) OURO_TRY(take(out, out_bytes, outputs_[i]));
  }
  return {};
}

// ---- steps ----------------------------------------------------------------------------------------

/// Piece `position` of what was posted in a round.
std::byte* HostExecutor::piece_on(const StagingView& b, std::uint64_t round, std::size_t position) const {
  std::byte* const first = on_ == On::slot      ? b.slot(round)
                           : on_ == On::arrival ? b.arrival(round).payload
                                                : b.eager(round);
  return first + position * stride_;
}

/// Where chunk `s.at` of what `from` posted lies; `at` is its place in a buffer that is read by reference.
Status HostExecutor::posted_at(int from, const Step& s, Extent at, const void** where) {
  const auto i = static_cast<std::size_t>(from);
  if (by_reference_) {
    *where = inputs_[i].data + at.offset * elem_;
    return {};
  }
  const std::uint64_t round = base_ + round_of(s.at);
  const bool result = (s.verb & flow::kResult) != 0;
  OURO_TRY(wait_for(from, round, result ? StagingView::kResult : StagingView::kPosted));
  std::size_t position = 0;
  if (result)
    position = static_cast<std::size_t>(last_piece_);
  else if (posts_others_)
    position = static_cast<std::size_t>(
        flow::wrap(static_cast<int>(static_cast<std::size_t>(s.at) % per_round_) - from - 1, n_));
  *where = piece_on(lanes_.staging_of[i], round, position);
  return {};
}

/// What this rank's caller reads next, or never soon.
void HostExecutor::deliver(void* to, const void* from, std::size_t bytes) const {
  if (to == from || bytes == 0) return;
  if (streams_)
    kernels::copy_stream(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

/// Folds the sources into `out`; past the caches by way of a tile that stays in the first level.
void HostExecutor::fold(std::byte* out, std::size_t count) {
  if (!streams_) {
    fold_(out, sources_, factors_, count);
    return;
  }
  const std::size_t block = std::max<std::size_t>(1, kTile / elem_);
  for (std::size_t from = 0; from < count; from += block) {
    const std::size_t some = std::min(block, count - from);
    fold_(tile_, sources_, factors_, some);
    kernels::copy_stream(out + from * elem_, tile_, some * elem_);
    for (const void*& source : sources_) source = static_cast<const std::byte*>(source) + some * elem_;
  }
}

Status HostExecutor::post(const Step& s) {
  if (by_reference_) return {};  // posted when the group was asked
  const std::uint64_t round = base_ + round_of(s.chunk);
  OURO_TRY(open_slot(round));
  const StagingView& mine = lanes_.staging_of[static_cast<std::size_t>(rank_)];
  if (s.verb & flow::kResult) {
    std::byte* const piece = piece_on(mine, round, static_cast<std::size_t>(last_piece_));
    parts(out_extent(s.chunk), [&](const std::byte*, std::byte* out, std::size_t done, std::size_t count) {
      kernels::copy_shared(piece + done * elem_, out, count * elem_);
    });
    mine.publish(round, StagingView::kResult, tag_);
    return {};
  }
  for (int j = 0; j < s.span; ++j) {
    const Extent e = in_extent(s.span == 1 ? s.chunk : flow::nth(s.chunk, j, static_cast<int>(per_round_)));
    std::byte* const piece = piece_on(mine, round, static_cast<std::size_t>(j));
    if (e.count > 0)
      parts(e, [&](const std::byte* in, std::byte*, std::size_t done, std::size_t count) {
        kernels::copy_shared(piece + done * elem_, in, count * elem_);
      });
  }
  mine.publish(round, StagingView::kPosted, tag_);
  return {};
}

Status HostExecutor::barrier() {
  const std::uint64_t round = lanes_.round;
  OURO_TRY(open_slot(round));
  if (streams_) kernels::stream_fence();
  const StagingView::Phase phase = met_ ? StagingView::kSecondBarrier : StagingView::kResult;
  met_ = true;
  lanes_.staging_of[static_cast<std::size_t>(rank_)].publish(round, phase, tag_);
  for (int r = 0; r < n_; ++r)
    if (r != rank_) OURO_TRY(wait_for(r, round, phase));
  return {};
}

/// Finds chunk `s.at` of all inputs; mine is at hand, posted or not.
Status HostExecutor::gather_sources(const Step& s, Extent at) {
  for (int r = 0; r < n_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (r == rank_) {
      sources_[i] = in_at(in_extent(s.at));
      if (reduction_.op == OpKind::premulsum) factors_[i] = op_->op.scalar;
      continue;
    }
    OURO_TRY(posted_at(r, s, at, &sources_[i]));
    if (reduction_.op != OpKind::premulsum) continue;
    const Arrival& arrival =
        lanes_.staging_of[i].arrival(by_reference_ ? lanes_.round : base_ + round_of(s.at));
    factors_[i] = {arrival.premul_real, arrival.premul_integer};
  }
  return {};
}

/// Block by block, so that what is written to all outputs is still in the first-level cache.
Status HostExecutor::multicast(const Step& s) {
  const Extent out = out_extent(s.chunk);
  const bool reduces = (s.verb & flow::kPosted) != 0 && s.from == flow::kEveryone;
  const std::byte* source = nullptr;
  if (reduces)
    OURO_TRY(gather_sources(s, blocks_ ? in_extent(s.at) : out));
  else if (s.verb & flow::kInput)
    source = in_at(in_extent(s.chunk));
  else
    source = inputs_[static_cast<std::size_t>(s.from)].data + out.offset * elem_;
  const std::size_t block = std::max<std::size_t>(1, (streams_ ? kTile : kSpreadBytes) / elem_);
  for (std::size_t from = 0; from < out.count; from += block) {
    const Extent e{out.offset + from, std::min(block, out.count - from)};
    const std::size_t bytes = e.count * elem_;
    if (reduces) {
      std::byte* to = streams_ ? tile_ : out_at(e);
      fold_(to, sources_, factors_, e.count);
      for (const void*& in : sources_) in = static_cast<const std::byte*>(in) + bytes;
      source = to;
    }
    for (int d = 0; d < n_; ++d) {
      std::byte* to = outputs_[static_cast<std::size_t>(flow::wrap(rank_ + d, n_))].data + e.offset * elem_;
      if (to == source) continue;
      if (streams_)
        kernels::copy_stream(to, source, bytes);
      else
        kernels::copy_shared(to, source, bytes);
    }
    if (!reduces) source += bytes;
  }
  return {};
}

/// Copies from one staging buffer, or from the input that it refers to.
Status HostExecutor::fetch(const Step& s) {
  const Extent out = out_extent(s.chunk);
  if (pulls_) {
    const Extent at = blocks_ ? in_extent(s.at) : out;
    return bring(s.from, (s.verb & flow::kResult) != 0, at.offset * elem_, out_at(out), out.count * elem_);
  }
  const void* source = nullptr;
  OURO_TRY(posted_at(s.from, s, blocks_ ? in_extent(s.at) : out, &source));
  // A root that has run ahead has written the next line already: have it come while this one is copied.
  if (on_ != On::slot && !by_reference_)
    __builtin_prefetch(&lanes_.staging_of[static_cast<std::size_t>(s.from)].arrival(lanes_.round + 1));
  parts(out, [&](const std::byte*, std::byte* to, std::size_t done, std::size_t count) {
    deliver(to, static_cast<const std::byte*>(source) + done * elem_, count * elem_);
  });
  return {};
}

Status HostExecutor::reduce(const Step& s) {
  if (pulls_) return reduce_remote(s);
  const Extent out = out_extent(s.chunk);
  OURO_TRY(gather_sources(s, blocks_ ? in_extent(s.at) : out));
  if (op_->segments.empty()) {
    fold(out_at(out), out.count);
    return {};
  }
  posted_ = sources_;
  parts(out, [&](const std::byte* in, std::byte* to, std::size_t done, std::size_t count) {
    for (std::size_t r = 0; r < posted_.size(); ++r)
      sources_[r] = static_cast<const std::byte*>(posted_[r]) + done * elem_;
    sources_[static_cast<std::size_t>(rank_)] = in;
    fold(to, count);
  });
  return {};
}

}  // namespace ouro::rt
