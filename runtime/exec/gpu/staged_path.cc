// Copies down and up around the host's operation. See staged_path.h.
#include "runtime/exec/gpu/staged_path.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/device_memory/pinned_segment.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/staged_cut.h"

namespace ouro::rt {

/// Memory of the host, kept from operation to operation.
struct StagedPath::Pinned {
  std::shared_ptr<Allocation> memory;
  std::shared_ptr<void> pin;  // null: copies are slower
};

Status StagedPath::need(std::size_t bytes, std::unique_ptr<Pinned>* p) {
  if (bytes == 0 || (*p && (*p)->memory->bytes() >= bytes)) return {};
  auto made = std::make_unique<Pinned>();
  OURO_ASSIGN(made->memory, team_.context.allocate(std::bit_ceil(bytes)));
  auto pinned = pin_segment(made->memory->segment(), made->memory->data(), made->memory->bytes());
  if (pinned.ok()) made->pin = std::move(*pinned);
  if (*p) outgrown_.push_back(std::move(*p));
  *p = std::move(made);
  return {};
}

StagedPath::StagedPath(GpuTeam& team, GpuPending& pending) : team_(team), pending_(pending), pieces_(team) {}
StagedPath::~StagedPath() = default;

bool StagedPath::has_queues() {
  if (has_queues_) return *has_queues_;
  has_queues_ = true;
  for (int r = 0; r < team_.size; ++r)
    for (int other = 0; other < r; ++other)
      if (tangled(team_.context, team_.world_rank(r), team_.world_rank(other))) has_queues_ = false;
  for (int r = 0; r < team_.size; ++r) *has_queues_ &= !crowded(team_.context, team_.world_rank(r));
  return *has_queues_;
}

/// What ends when both have ended: the copies, and the host's part, whose outcome counts.
static std::shared_ptr<WorkState> both(WorkState& copied, const std::shared_ptr<WorkState>& host) {
  auto work = std::make_shared<WorkState>();
  copied.then([work, host](const Status& s) {
    if (!s.ok()) return work->complete(s);
    host->then([work](const Status& outcome) { work->complete(outcome); });
  });
  return work;
}

/// A piece of the region, or of every block, as it is.
class StagedPath::Copies final : public PieceMover {
 public:
  Copies(const Operation& op, const StagedCut& cut) : op_(op), cut_(cut) {}
  Status down(std::size_t k, std::byte* slot, const gpu::Stream& s) override {
    const auto* const from = static_cast<const std::byte*>(op_.in.data);
    return cut_.each_block(k, cut_.in_blocks, [&](std::size_t within, std::size_t at, std::size_t count) {
      return gpu::gpu().copy(slot + within * cut_.elem, from + at * cut_.elem, count * cut_.elem, s);
    });
  }
  Status up(std::size_t k, const std::byte* slot, const gpu::Stream& s) override {
    auto* const to = static_cast<std::byte*>(op_.out.data);
    return cut_.each_block(k, cut_.out_blocks, [&](std::size_t within, std::size_t at, std::size_t count) {
      return gpu::gpu().copy(to + at * cut_.elem, slot + within * cut_.elem, count * cut_.elem, s);
    });
  }

 private:
  const Operation& op_;
  const StagedCut& cut_;
};

Status StagedPath::run_in_pieces(const Pieces& p, const std::shared_ptr<GpuStream>& stream, RunOnHost on_host,
                                 std::shared_ptr<WorkState>* work) {
  const bool together = p.reads && p.writes && p.in_place;
  const std::size_t slots = std::min(p.cut.pieces, StagedCut::kSlots);
  if (p.reads) OURO_TRY(need(slots * p.cut.in_bytes(), &in_));
  if (p.writes && !together) OURO_TRY(need(slots * p.cut.out_bytes(), &out_));
  std::byte* const in = p.reads ? in_->memory->data() : nullptr;
  std::byte* const out = !p.writes ? nullptr : (together ? in_ : out_)->memory->data();
  OURO_TRY(pieces_.prepare(p.room));
  OURO_ASSIGN(auto ahead, pending_.prepare(p.watched, p.seq, stream, false, false));
  std::shared_ptr<WorkState> outcome, copied;
  Operation op = p.op;  // what has no buffers of its own has those of its pieces
  if (!op.in.data) op.in.data = in;
  if (!op.out.data) op.out.data = out;
  const Status enqueued = pieces_.enqueue(op, p.cut, p.mover, in, out, stream, std::move(on_host), &outcome);
  const Status marked = pending_.mark(std::move(ahead), &copied);
  OURO_TRY(enqueued);
  OURO_TRY(team_.in_part(marked));
  pieces_.follow(copied, p.room);
  *work = both(*copied, outcome);
  return {};
}

Status StagedPath::run(const Operation& op, const std::shared_ptr<GpuStream>& stream, RunOnHost on_host,
                       std::shared_ptr<WorkState>* work) {
  if (const StagedCut cut(op, team_.rank, team_.size); cut.cut() && has_queues()) {
    Copies copies(op, cut);
    // Where all of it is in place a piece is, too: what has been selected for the one serves the other. Not
    // where this rank's block begins the other buffer.
    return run_in_pieces({.op = op,
                          .reads = op.reads(team_.rank) && cut.in_bytes() > 0,
                          .writes = op.writes(team_.rank) && cut.out_bytes() > 0,
                          .in_place = op.in.data == op.out.data && cut.in_blocks == cut.out_blocks,
                          .cut = cut,
                          .mover = copies,
                          .watched = nullptr,
                          .seq = 0,
                          .room = StagedPieces::kRoom / 2},
                         stream, std::move(on_host), work);
  }
  const std::size_t in_bytes = op.read_bytes(team_.rank), out_bytes = op.written_bytes(team_.rank);
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  auto* out_begin = static_cast<std::byte*>(op.out.data);
  const bool together = overlap(in_begin, in_bytes, out_begin, out_bytes);
  OURO_TRY(need(together ? std::max(in_bytes, out_bytes) : in_bytes, &in_));
  if (!together) OURO_TRY(need(out_bytes, &out_));
  std::byte* in = in_bytes ? in_->memory->data() : nullptr;
  std::byte* out = out_bytes ? (together ? in_ : out_)->memory->data() : nullptr;
  if (together) {  // in place: the same distance between the two
    if (in_begin < out_begin)
      out = in + (out_begin - in_begin);
    else
      in = out + (in_begin - out_begin);
  }
  Operation host = op;
  host.in.device = host.out.device = {};
  host.in.data = in, host.out.data = out;
  // The group's own operation, on the host, is the one that is watched.
  OURO_ASSIGN(auto ahead, pending_.prepare(nullptr, 0, stream, false));
  if (in_bytes) OURO_TRY(gpu::gpu().copy(in, op.in.data, in_bytes, stream->get()));
  const auto kept = std::make_shared<const KeptOperation>(host);
  const gpu::HostCopy up{static_cast<std::byte*>(op.out.data), out, out_bytes};
  std::shared_ptr<WorkState> outcome;
  gpu::NumberedWord ended = ahead.end.word;
  const Status copied_up =
      stream->enqueue([kept, on_host = std::move(on_host)] { return on_host(kept->get(), {}); },
                      {&up, out_bytes > 0}, &outcome, &ended);
  if (outcome->done() && !outcome->outcome().ok())
    return outcome->outcome();  // perhaps it was never enqueued
  OURO_TRY(copied_up);
  if (ahead.end.word.word && !ended.word) ahead.end.enqueued();
  std::shared_ptr<WorkState> copied;
  OURO_TRY(pending_.mark(std::move(ahead), &copied));
  *work = std::make_shared<WorkState>();
  copied->then([work = *work, outcome](const Status& s) { work->complete(s.ok() ? outcome->outcome() : s); });
  return {};
}

}  // namespace ouro::rt
