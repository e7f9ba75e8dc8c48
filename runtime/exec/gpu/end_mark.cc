// See end_mark.h.
#include "runtime/exec/gpu/end_mark.h"

namespace ouro::rt {

bool EndMark::passed() {
  std::lock_guard lock(mutex_);
  if (passed_) return true;
  if (!reached()) {
    // The device is asked from time to time: a word does not say that it is never written.
    const auto now = Clock::now();
    if (now < ask_at_) return false;
    ask_at_ = now + kBetween;
    const Status lost = end_->ask_device();
    if (lost.ok()) return false;
    stream_->heed(lost);
    if (!explained_) explain(lost);
  }
  if (!explained_ && is_doubtful()) return false;
  release();
  on_device_.end();
  return passed_ = true;
}

Status EndMark::outcome() {
  std::lock_guard lock(mutex_);
  return outcome_;
}

Status EndMark::hold_up(const gpu::Stream& s) {
  OURO_ASSIGN(const std::uint64_t capture, gpu::gpu().capturing(s));
  if (capture != 0) return invalid("a stream that is being captured waits for an operation outside");
  const gpu::MemOp wait{gpu::MemOp::Kind::wait_at_least, number_, end_->address()};
  return gpu::gpu().enqueue({&wait, 1}, s);
}

void EndMark::fail(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!passed_) explain(why);
}

void EndMark::explain(const Status& why) {
  outcome_ = why;
  explained_ = true;
  stream_->note(why);
}

}  // namespace ouro::rt
