// EndMark: the mark of an operation whose last piece of work writes a number into a pinned word. Used by
// GpuPending and by exchanges.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/device_memory/deferred_free.h"
#include "runtime/exec/gpu/end_word.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Passed when its number has been written or the device is lost. While something may have failed that the
/// group is about to detect, it is not passed: it then fails, when this rank has learned why.
class EndMark : public Mark {
 public:
  EndMark(std::shared_ptr<GpuStream> s, std::shared_ptr<EndWord> e, std::uint32_t number)
      : end_(std::move(e)), number_(number), stream_(std::move(s)) {}
  bool passed() final;
  Status outcome() final;
  Status hold_up(const gpu::Stream&) override;
  HostStream& watcher() final { return stream_->watcher(); }
  /// If it has not passed by now, it ends with `why`.
  void fail(const Status& why);

 protected:
  // Called with the mark's lock held.
  virtual bool reached() const { return end_->reached(number_); }
  virtual bool is_doubtful() const = 0;  ///< although the number has been reached
  virtual void release() = 0;            ///< of what it has kept, once it has passed
  bool is_explained() const { return explained_; }
  const std::shared_ptr<EndWord> end_;
  const std::uint32_t number_;

 private:
  void explain(const Status& why);
  static constexpr std::chrono::milliseconds kBetween{10};
  std::shared_ptr<GpuStream> stream_;
  Clock::time_point ask_at_ = Clock::now() + kBetween;
  OperationOnDevice on_device_;
  std::mutex mutex_;
  bool passed_ = false, explained_ = false;
  Status outcome_;
};

}  // namespace ouro::rt
