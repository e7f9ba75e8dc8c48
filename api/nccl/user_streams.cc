// The user's streams. See user_streams.h.
#include "api/nccl/user_streams.h"

#include <algorithm>
#include <utility>

#include "kernels/device/gpu.h"

namespace ouro::nccl {

Result<std::uint64_t> capture_of(const Stream& s) {
  return gpu::gpu().capturing({s.device().index, s.cuda_handle()});
}

Result<Stream> UserStreams::find(cudaStream_t handle, int device) {
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Stream& s) { return s.cuda_handle() == handle; });
  if (found == known_.begin() && !known_.empty()) return *found;
  if (found != known_.end()) {
    std::rotate(known_.begin(), found, found + 1);
  } else {
    OURO_ASSIGN(auto made, Stream::cuda(handle, device));
    known_.push_front(std::move(made));
    if (known_.size() > kKept) known_.pop_back();
  }
  return known_.front();
}

UserStreams::Last& UserStreams::last(std::uint64_t capture) {
  if (capture == 0) return run_;
  if (std::exchange(capture_, capture) != capture) captured_ = {};
  return captured_;
}

Status UserStreams::follow(const Stream& s) {
  OURO_ASSIGN(const std::uint64_t capture, capture_of(s));
  const Last& before = last(capture);
  if (before.on.valid() && before.on.cuda_handle() != s.cuda_handle()) before.end.wait_on(s);
  return {};
}

Status UserStreams::ran(const Stream& s, const Work& work) {
  OURO_ASSIGN(const std::uint64_t capture, capture_of(s));
  if (capture != 0) return ran(s);  // the Work of a captured operation is complete immediately
  run_.end.record(work);
  run_.on = s;
  return {};
}

Status UserStreams::ran(const Stream& s) {
  OURO_ASSIGN(const std::uint64_t capture, capture_of(s));
  Last& now = last(capture);
  now.end.record(s);
  now.on = s;
  return {};
}

}  // namespace ouro::nccl
