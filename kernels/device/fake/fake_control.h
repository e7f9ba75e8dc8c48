// The state that all parts of a FakeGpu in one process share: which threads may call, which calls fail, and
// which handles exist. Used by the fake_*.cc files.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/core/wait.h"

namespace ouro::gpu::fake {

inline constexpr auto kSlice =
    std::chrono::milliseconds(10);        // how late a wait notices that its device has ended
inline constexpr int kMaxThreads = 1024;  // of a block
inline constexpr int kHighPriority = -5, kLowPriority = 0;

/// Whether a call may begin: which devices there are and which are lost, what tests inject, and how the
/// threads of one fake end. Shared by all of them.
class Control {
 public:
  explicit Control(int devices) : devices_(static_cast<std::size_t>(devices)) {}
  /// Copies the injections of another that have not taken effect yet.
  Control(int devices, const Control& from);

  /// Called first in each call: checks that it is allowed on this thread, that the device exists and works,
  /// and that no failure is injected.
  Status admit(FakeOp, int device);
  /// The same without a device of its own; an injected fault hits `victim`.
  Status admit_anywhere(FakeOp, int victim = 0);
  Status check(int device) const;  ///< checks that it exists and works
  static Status allowed_here();    ///< no function on a stream may call the GPU

  bool ended(int device) const;  ///< its work is dropped from now on
  void stop() { stopping_.store(true, std::memory_order_release); }
  void lose(int device, std::string why);
  Status lost(int device) const;  ///< why, if it has ended

  /// Notes that there is a context on the device, made by the first use of it.
  void use(int device) { at(device).used.store(true, std::memory_order_relaxed); }
  int contexts() const;
  /// The failure of a wait of the device that did not end in time. Error: resource.
  Status stalled(const std::string& what);
  int stalls() const { return stalls_.load(std::memory_order_relaxed); }

  void delay(FakeOp, std::chrono::microseconds);
  void fail_next(FakeOp, Reason);
  void jitter(std::uint64_t seed) { seed_.store(seed, std::memory_order_relaxed); }
  /// Returns the injected reason, once; `keep_fault`: `device` is kept for take_fault.
  Reason take(FakeOp, bool keep_fault);
  bool take_fault(FakeOp);  ///< whether `device` was injected, once
  /// Sleeps as injected.
  void hesitate(FakeOp, int device);

  /// Waits until `blocks` more spinning blocks fit; false if the device ended.
  bool enter_spin(int device, int blocks, int capacity);
  void leave_spin(int device, int blocks);

 private:
  struct Device {
    std::atomic<bool> lost{false}, used{false};
    std::mutex mutex;
    std::condition_variable room;
    std::string why;
    int spinning = 0;  // blocks of kernels that spin
  };
  Device& at(int device) const { return devices_[static_cast<std::size_t>(device)]; }
  mutable std::deque<Device> devices_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> stalls_{0};
  std::array<std::atomic<std::int64_t>, kFakeOps> delay_us_{};
  std::array<std::atomic<Reason>, kFakeOps> failure_{};
  std::atomic<std::uint64_t> seed_{0}, turn_{0};
};

/// Numbers that stand for streams, events and graphs, with the process that made each: handles of a parent
/// can be distinguished from numbers that were never handles. Guarded by the lock of the streams.
class Handles {
 public:
  explicit Handles(int parent);  ///< whose handles this process may have inherited, or 0
  int pid() const { return pid_; }
  std::uint64_t number() { return next_++; }  ///< a new one
  void* make(std::uint64_t number) const;
  Status unknown(const char* what, const void* handle) const;

 private:
  const int pid_, parent_;
  std::uint64_t next_ = 1;
};

/// Whether this thread is in a function that a stream called. It may not call the GPU.
bool& in_host_work();

}  // namespace ouro::gpu::fake
