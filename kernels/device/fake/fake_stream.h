// What runs on fake GPUs: streams as queues with a thread each, marks, stream values, kernels, graphs.
// Used by fake_gpu.cc and fake_capture.cc.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "kernels/device/fake/fake_memory.h"
#include "runtime/core/thread.h"
#include "runtime/core/wait.h"

namespace ouro::gpu::fake {

/// How the threads of one fake end, what tests inject, and which devices are lost. Shared by all of them.
class Control {
 public:
  explicit Control(int devices) : devices_(static_cast<std::size_t>(devices)) {}
  /// With the injections of another, as far as they are still to come.
  Control(int devices, const Control& from);

  bool ended(int device) const;  ///< its work is dropped from now on
  void stop() { stopping_.store(true, std::memory_order_release); }
  void lose(int device, std::string why);
  Status lost(int device) const;  ///< why, if it has ended

  void delay(FakeOp, std::chrono::microseconds);
  void fail_next(FakeOp, Reason);
  void jitter(std::uint64_t seed) { seed_.store(seed, std::memory_order_relaxed); }
  /// The injected reason, once; `keep_fault`: `device` stays, for take_fault.
  Reason take(FakeOp, bool keep_fault);
  bool take_fault(FakeOp);  ///< whether `device` was injected, once
  /// Sleeps as injected.
  void hesitate(FakeOp, int device);

  /// Waits until `blocks` more spinning blocks fit; false if the device ended.
  bool enter_spin(int device, int blocks, int capacity);
  void leave_spin(int device, int blocks);

 private:
  struct Device {
    std::atomic<bool> lost{false};
    std::mutex mutex;
    std::condition_variable room;
    std::string why;
    int spinning = 0;  // blocks of kernels that spin
  };
  Device& at(int device) const { return devices_[static_cast<std::size_t>(device)]; }
  mutable std::deque<Device> devices_;
  std::atomic<bool> stopping_{false};
  std::array<std::atomic<std::int64_t>, kFakeOps> delay_us_{};
  std::array<std::atomic<Reason>, kFakeOps> failure_{};
  std::atomic<std::uint64_t> seed_{0}, turn_{0};
};

/// A point in the work of a device. Passed once.
class Mark {
 public:
  explicit Mark(int device) : device_(device) {}
  void pass();
  bool passed() const;
  Clock::time_point when() const;  ///< once passed
  /// On a stream: also ends when the stream's device or the mark's has ended.
  void wait_on_stream(const Control&, int device);
  void wait();  ///< ends at the latest when the device ends: a dropped mark is passed too

 private:
  const int device_;
  mutable std::mutex mutex_;
  std::condition_variable cv_;
  bool passed_ = false;
  Clock::time_point when_;
};

/// Where an operation runs. `marks` are those of the replay of a graph.
struct Run {
  Control& control;
  int device;
  std::deque<Mark>* marks = nullptr;
  bool ended() const { return control.ended(device); }
};
using Work = std::function<void(const Run&)>;
struct Op {
  FakeOp kind;
  Work work;
};
/// After an injected sleep. On a device that has ended nothing runs but records, which nobody shall miss.
void perform(const Op&, const Run&);

/// What a graph is made of.
struct Recording {
  struct Lane {
    int device;
    std::vector<Op> ops;
  };
  std::vector<Lane> lanes;  ///< one for each captured stream; the first is the origin
  int marks = 0;            ///< events recorded in the capture
};
/// Runs the lanes beside each other, and returns when all have ended.
void replay(const Recording&, const Run&);

/// A capture in progress, guarded by the lock of the fake.
struct Capture {
  std::uint64_t id = 0;
  std::string broken;  ///< why end_capture will fail; empty: it is sound
  bool ended = false;
  Recording recording;
  /// A lane's clock says, for each lane, how many of its operations came before what is captured next.
  std::vector<std::vector<std::size_t>> clocks;
};

/// A stream. Its thread starts with the first operation.
class Queue {
 public:
  Queue(std::shared_ptr<Control> control, int device, std::string name)
      : control_(std::move(control)), device_(device), name_(std::move(name)) {}
  ~Queue() { end(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Status push(Op);
  void push_behind_work(Op);  ///< unless there is none
  bool idle() const;
  void drain();  ///< until what was pushed before has ended
  bool drain_until(Clock::time_point);
  void close();  ///< the thread ends once the queue is empty
  void end();    ///< closes, and joins the thread
  int device() const { return device_; }
  const std::string& name() const { return name_; }

  /// Guarded by the lock of the fake: the capture that this stream is in, and its lane there.
  std::shared_ptr<Capture> capture;
  std::size_t lane = 0;

 private:
  void loop();
  const std::shared_ptr<Control> control_;
  const int device_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable more_, less_;
  std::deque<Op> ops_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool closed_ = false;
  Thread thread_;
};

// Work. Arguments are copied; addresses are checked again when it runs.
Work copy_work(const Memory&, void* to, const void* from, std::size_t bytes);
Work set_work(const Memory&, void* to, std::uint8_t byte, std::size_t bytes);
Work mem_op_work(const Memory&, std::span<const MemOp>);
/// `capacity`: spinning blocks that fit on the device.
Work kernel_work(const Kernel&, int blocks, const void* args, int capacity);
Work host_work(void (*f)(void*), void* data);
Work fault_work();  ///< what was injected: the device is lost
/// Whether this thread is in a function of host_work.
bool in_host_work();

}  // namespace ouro::gpu::fake
