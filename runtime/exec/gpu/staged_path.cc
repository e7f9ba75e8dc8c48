// Copies down and up around the host's operation. See staged_path.h.
#include "runtime/exec/gpu/staged_path.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "runtime/exec/gpu/pins.h"

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
  auto pinned = pin(made->memory->segment(), made->memory->data(), made->memory->bytes());
  if (pinned.ok()) made->pin = std::move(*pinned);
  if (*p) outgrown_.push_back(std::move(*p));
  *p = std::move(made);
  return {};
}

StagedPath::StagedPath(GpuTeam& team, GpuPending& pending) : team_(team), pending_(pending) {}
StagedPath::~StagedPath() = default;

Status StagedPath::run(const Operation& op, const std::shared_ptr<GpuStream>& stream, RunOnHost on_host,
                       std::shared_ptr<WorkState>* work) {
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
  const auto outcome = stream->enqueue([kept, on_host = std::move(on_host)] { return on_host(kept->get()); });
  if (outcome->done() && !outcome->outcome().ok())
    return outcome->outcome();  // perhaps it was never enqueued
  if (out_bytes) OURO_TRY(gpu::gpu().copy(op.out.data, out, out_bytes, stream->get()));
  std::shared_ptr<WorkState> copied;
  OURO_TRY(pending_.mark(std::move(ahead), &copied));
  *work = std::make_shared<WorkState>();
  copied->then([work = *work, outcome](const Status& s) { work->complete(s.ok() ? outcome->outcome() : s); });
  return {};
}

}  // namespace ouro::rt
