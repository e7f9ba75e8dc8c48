// Host streams: ordered queues, each run by a thread of its own; and what all kinds of streams share: work
// states and events. Used by groups (operations on a stream) and, through the public handles, by users.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/fork.h"
#include "runtime/core/status.h"
#include "runtime/core/thread.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

class Stream;

/// A point in a device's stream that has to be passed before an operation is done.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual bool passed() = 0;     ///< never blocks
  virtual Status outcome() = 0;  ///< precondition: passed
  /// Work that the stream is given from now on starts after this point. Errors: those of the device; invalid
  /// (the stream is capturing, and the point is outside).
  virtual Status hold_up(const gpu::Stream&) = 0;
  /// A stream whose thread may wait for the mark and run callbacks.
  virtual class HostStream& watcher() = 0;
};

/// The outcome of one operation; any thread may wait for it. The states of a parent count as done in a forked
/// child, with outcome `forked`.
struct WorkState : std::enable_shared_from_this<WorkState> {
  WorkState() = default;
  /// A state that is done once `mark` is passed.
  explicit WorkState(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  void complete(Status outcome);
  /// Returns false if `until` passes before the operation is done.
  bool wait_until(Clock::time_point until);
  void wait();
  bool done();
  Status outcome();
  /// Calls f with the outcome: at once if the operation is done, else on the thread that completes it.
  /// Exceptions thrown by f in the latter case are logged and otherwise ignored.
  void then(std::function<void(const Status&)> f);
  const std::shared_ptr<Mark>& mark() const { return mark_; }

 private:
  bool inherited() const { return forks_ != forks(); }
  const std::shared_ptr<Mark> mark_;
  std::mutex mutex_;
  std::condition_variable cv_;
  const unsigned forks_ = forks();
  bool done_ = false;
  Status outcome_;
  std::vector<std::function<void(const Status&)>> callbacks_;
};

/// An ordered queue of operations, on the host or on a GPU.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Runs f on a host thread, in stream order; an exception becomes a `resource` failure.
  virtual std::shared_ptr<WorkState> enqueue(std::function<Status()> f) = 0;
  virtual std::shared_ptr<WorkState> last() = 0;  ///< done after all work enqueued so far; nullptr: none
  /// The same for a caller that only waits: it may also await work that is enqueued meanwhile.
  virtual std::shared_ptr<WorkState> drained() { return last(); }
  /// Work enqueued from now on starts after `mark` is done.
  virtual void after(std::shared_ptr<WorkState> mark) = 0;
  virtual class GpuStream* gpu() { return nullptr; }  ///< nullptr: not a GPU stream
  /// Errors: forked, if this process is a forked child of the stream's creator. Enqueued functions end with
  /// that error.
  Status usable() const { return inherited() ? of_parent() : Status(); }

  /// Stores the first failure of a function on this stream until take_failure() clears it.
  void note(const Status& outcome) {
    if (!inherited()) failures_->note(outcome);
  }
  Status take_failure() { return inherited() ? of_parent() : failures_->take(); }

 protected:
  bool inherited() const { return forks_ != forks(); }
  static Status of_parent();
  /// The state that enqueue() and last() return in a forked child.
  static std::shared_ptr<WorkState> refused();

  /// Shared with the code that reports failures, which may outlive the stream.
  class Failures {
   public:
    void note(const Status& outcome);
    Status take();

   private:
    std::mutex mutex_;
    Status first_;
  };
  const std::shared_ptr<Failures> failures_ = std::make_shared<Failures>();

 private:
  const unsigned forks_ = forks();
};

class HostStream final : public Stream {
 public:
  /// nice: nice value of the thread (0: normal; -5 needs a privilege and is best effort).
  HostStream(std::string name, int nice);
  ~HostStream() override;  ///< runs what is queued, then joins the thread; a no-op in a forked child
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  std::shared_ptr<WorkState> enqueue(std::function<Status()> f) override;
  std::shared_ptr<WorkState> last() override;
  void after(std::shared_ptr<WorkState> mark) override;

 private:
  // Shared with the thread: a callback that runs on that thread may release the last handle of the stream.
  struct Queue {
    struct Task {
      std::function<Status()> run;
      std::shared_ptr<WorkState> state;
    };
    std::mutex mutex;
    std::condition_variable cv;
    std::deque<Task> tasks;
    std::shared_ptr<WorkState> last;
    bool stop = false;
  };
  static void loop(Queue&, Failures&, int nice);
  std::shared_ptr<Queue> queue_;
  Thread thread_;
};

/// Runs f on a new, detached thread. Used for work that waits for streams but is started by the thread of a
/// stream. If no thread can be created, f never runs and a warning is logged.
void run_aside(std::function<void()> f);

/// The point of a stream that an event marks. In a forked child, set() on an event of the parent is a no-op,
/// and get() returns a state that has ended with `forked`.
class EventState {
 public:
  void set(std::shared_ptr<WorkState> mark);
  std::shared_ptr<WorkState> get() const;  ///< nullptr: never set

 private:
  const unsigned forks_ = forks();
  mutable std::mutex mutex_;
  std::shared_ptr<WorkState> mark_;
};

}  // namespace ouro::rt
