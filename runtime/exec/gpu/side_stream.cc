// See side_stream.h.
#include "runtime/exec/gpu/side_stream.h"

#include <utility>

#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

Status SideStream::prepare(std::shared_ptr<GpuStream> shared) {
  if (prepared()) return {};
  eager_ = std::move(shared);
  if (!eager_) {
    OURO_ASSIGN(eager_, GpuStream::create(device_, priority_));
  }
  OURO_ASSIGN(forks_, PooledEvent::take(device_));
  OURO_ASSIGN(joins_, PooledEvent::take(device_));
  return {};
}

Result<gpu::Stream> SideStream::beside(const gpu::Stream& stream, bool capturing) {
  if (!capturing) return eager_->get();
  OURO_ASSIGN(const auto capture, gpu::gpu().capturing(stream));
  for (const auto& s : captured_) {
    const auto now = gpu::gpu().capturing(s->get());  // an error: its capture has failed and is not over
    if (now.ok() && (*now == 0 || *now == capture)) return s->get();
  }
  OURO_ASSIGN(auto made, GpuStream::create(device_, priority_));
  captured_.push_back(std::move(made));
  return captured_.back()->get();
}

Status SideStream::fork(const gpu::Stream& side, const gpu::Stream& stream) const {
  return follows(side, stream, *forks_);
}

Status SideStream::join(const gpu::Stream& side, const gpu::Stream& stream) const {
  return follows(stream, side, *joins_);
}

}  // namespace ouro::rt
