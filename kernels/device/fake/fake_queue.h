// Streams of fake GPUs, each a queue with a thread of its own; marks in them; graphs and their capture. Used
// by the parts of a FakeGpu.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/device/fake/fake_control.h"
#include "runtime/core/thread.h"

namespace ouro::gpu::fake {

/// A point in the work of a device; it is passed once.
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

/// The place where an operation runs. `marks` are those of the replay of a graph.
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
/// Runs the operation after an injected sleep. On a device that has ended only records run, because waits
/// depend on them.
void perform(const Op&, const Run&);

/// The operations of a graph.
struct Recording {
  struct Lane {
    int device;
    std::vector<Op> ops;
  };
  std::vector<Lane> lanes;  ///< one for each captured stream; the first is the origin
  int marks = 0;            ///< events recorded in the capture
};
/// Runs f(0), ..., f(n - 1) at the same time, f(0) on this thread. Returns false, and runs none, if threads
/// are lacking.
bool together(int n, const std::function<void(int)>& f);
/// Runs the lanes concurrently, and returns when all have ended.
void replay(const Recording&, const Run&);

/// A capture in progress, guarded by the lock of the fake.
struct Capture {
  std::uint64_t id = 0;
  std::string broken;  ///< why end_capture will fail; empty: it is sound
  bool ended = false;
  Recording recording;
  /// A lane's clock holds, for each lane, the number of its operations that precede the next captured one.
  std::vector<std::vector<std::size_t>> clocks;

  /// The stream takes part from now on; the first to do so is the origin.
  static void join(const std::shared_ptr<Capture>&, class Queue&);
  Status break_off(std::string why);  ///< it is never restored; the text is also the error
  bool joined() const;                ///< whether the origin has waited for the work of all lanes
};

/// A queue of the device that several streams share: it runs their operations in the order in which they
/// were enqueued.
class Connection {
 public:
  std::uint64_t take();  ///< a place in the order
  /// Waits until all operations before it have ended, or the device has.
  void wait_for(std::uint64_t place, const Control&, int device);
  void pass(std::uint64_t place);

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  std::uint64_t taken_ = 0, passed_ = 0;
};

/// A stream. Its thread starts with the first operation.
class Queue {
 public:
  /// `shared`: the queue of the device that it uses, or nullptr. `blocking`: in order with the legacy stream
  /// of its device.
  Queue(std::shared_ptr<Control> control, int device, std::string name, std::shared_ptr<Connection> shared,
        bool blocking = false)
      : control_(std::move(control)),
        device_(device),
        name_(std::move(name)),
        shared_(std::move(shared)),
        blocking_(blocking) {}
  ~Queue() { end(); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Status push(Op);
  void push_behind_work(Op);  ///< unless there is none
  bool idle() const;
  void drain();  ///< waits until earlier operations have ended
  bool drain_until(Clock::time_point);
  bool room_until(int depth, Clock::time_point);  ///< waits until it holds fewer than `depth` operations
  void close();                                   ///< the thread ends once the queue is empty
  void end();                                     ///< closes, and joins the thread
  int device() const { return device_; }
  const std::string& name() const { return name_; }
  bool blocking() const { return blocking_; }

  /// Guarded by the lock of the fake: the capture that this stream is in, and its lane there.
  std::shared_ptr<Capture> capture;
  std::size_t lane = 0;

 private:
  struct Placed {
    Op op;
    std::uint64_t place;  ///< in shared_, unless it is the record of an event, which waits for nobody there
  };
  void loop();
  void append(Op);  ///< with mutex_ held
  const std::shared_ptr<Control> control_;
  const int device_;
  const std::string name_;
  const std::shared_ptr<Connection> shared_;
  const bool blocking_;
  mutable std::mutex mutex_;
  std::condition_variable more_, less_;
  std::deque<Placed> ops_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool closed_ = false;
  Thread thread_;
};

}  // namespace ouro::gpu::fake
