// The staged path: down into pinned memory of the host, the host's own operation, up again. See
// gpu_executor.h.
#include <algorithm>
#include <bit>

#include "runtime/exec/gpu/gpu_executor.h"

namespace ouro::rt {

using gpu::gpu;

struct GpuExecutor::HostBounce {
  std::shared_ptr<Allocation> memory;
  bool pinned = false;
  ~HostBounce() {
    if (pinned) (void)gpu().unregister_host(memory->data()).ok();
  }
};

Status GpuExecutor::run_staged(const Operation& op, const std::shared_ptr<GpuStream>& stream,
                               RunOnHost on_host, std::shared_ptr<WorkState>* work) {
  auto capture = gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  if (*capture != 0)
    return unsupported("an operation that is staged through the host cannot be captured in a graph");
  OURO_TRY(check_buffers(op, 0));
  OURO_TRY(order(*stream, false));
  const std::size_t in_bytes = op.read_bytes(rank_), out_bytes = op.written_bytes(rank_);
  const auto room = [&](std::shared_ptr<HostBounce>* bounce, std::size_t n) -> Status {
    if (n == 0 || (*bounce && (*bounce)->memory->bytes() >= n)) return {};
    auto made = std::make_shared<HostBounce>();
    auto memory = context_.allocate(std::bit_ceil(n));
    if (!memory.ok()) return memory.status();
    made->memory = std::move(*memory);
    made->pinned =
        gpu().register_host(made->memory->data(), made->memory->bytes()).ok();  // else copies are slower
    retire(std::move(*bounce));
    *bounce = std::move(made);
    return {};
  };
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  auto* out_begin = static_cast<std::byte*>(op.out.data);
  Operation host = op;
  host.in.device = host.out.device = {};
  const bool apart = in_bytes == 0 || out_bytes == 0 || in_begin + in_bytes <= out_begin ||
                     out_begin + out_bytes <= in_begin;
  OURO_TRY(room(&host_in_, apart ? in_bytes : std::max(in_bytes, out_bytes)));
  if (apart) OURO_TRY(room(&host_out_, out_bytes));
  std::byte* in = in_bytes ? host_in_->memory->data() : nullptr;
  std::byte* out = out_bytes ? (apart ? host_out_ : host_in_)->memory->data() : nullptr;
  if (!apart) {  // in place: the same distance between the two
    if (in_begin < out_begin)
      out = in + (out_begin - in_begin);
    else
      in = out + (in_begin - out_begin);
  }
  host.in.data = in, host.out.data = out;
  if (in_bytes) OURO_TRY(gpu().copy(in, op.in.data, in_bytes, stream->get()));
  const auto kept = std::make_shared<const KeptOperation>(host);
  const auto outcome = stream->enqueue([kept, on_host = std::move(on_host)] { return on_host(kept->get()); });
  if (outcome->done() && !outcome->outcome().ok())
    return outcome->outcome();  // perhaps it was never enqueued
  if (out_bytes) OURO_TRY(gpu().copy(op.out.data, out, out_bytes, stream->get()));
  // The group's own operation, on the host, is the one that is watched.
  std::shared_ptr<WorkState> copied;
  OURO_TRY(finish(nullptr, 0, stream, false, &copied));
  *work = std::make_shared<WorkState>();
  copied->then([work = *work, outcome](const Status& s) { work->complete(s.ok() ? outcome->outcome() : s); });
  return {};
}

}  // namespace ouro::rt
