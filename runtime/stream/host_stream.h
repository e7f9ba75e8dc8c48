// Streams of the host: ordered queues run by one thread each; what all kinds of streams share, work states
// and events. Used by groups (operations on a stream) and, through the public handles, by users.
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

/// A point that a device has to pass before a work is done.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual bool passed() = 0;     ///< never blocks
  virtual Status outcome() = 0;  ///< once passed
  virtual gpu::Event event() const = 0;
  /// A thread on which to wait for it and to call back.
  virtual class HostStream& watcher() = 0;
};

/// The outcome of one operation, to be waited for by anybody. To a forked child, those of its parent have
/// ended, with `forked`.
struct WorkState : std::enable_shared_from_this<WorkState> {
  WorkState() = default;
  /// Done when the mark is passed.
  explicit WorkState(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  void complete(Status outcome);
  /// False if `until` passed first.
  bool wait_until(Clock::time_point until);
  void wait();
  bool done();
  Status outcome();
  /// What f throws is logged, and nothing else comes of it.
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

/// An ordered queue of work, of the host or of a GPU.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Runs f on a thread of the host, in order; an exception becomes a `resource` failure.
  virtual std::shared_ptr<WorkState> enqueue(std::function<Status()> f) = 0;
  virtual std::shared_ptr<WorkState> last() = 0;  ///< of what was enqueued so far; nullptr if nothing
  /// What is enqueued from now on starts after `mark`.
  virtual void after(std::shared_ptr<WorkState> mark) = 0;
  virtual class GpuStream* gpu() { return nullptr; }  ///< if it is one
  /// Errors: forked, if this process is a child of the one that made it. What is enqueued ends with that.
  Status usable() const { return inherited() ? of_parent() : Status(); }

  /// Keeps the first failure of what ran here until somebody takes it.
  void note(const Status& outcome) {
    if (!inherited()) failures_->note(outcome);
  }
  Status take_failure() { return inherited() ? of_parent() : failures_->take(); }

 protected:
  bool inherited() const { return forks_ != forks(); }
  static Status of_parent();
  /// What enqueue() and last() return then.
  static std::shared_ptr<WorkState> refused();

  /// Shared with those who tell of a failure, who may outlive the stream.
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
  /// nice: how much the thread yields to others (0 normal; -5 needs a privilege and is best effort).
  HostStream(std::string name, int nice);
  ~HostStream() override;  ///< runs what is queued, then joins; in a forked child nothing
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  std::shared_ptr<WorkState> enqueue(std::function<Status()> f) override;
  std::shared_ptr<WorkState> last() override;
  void after(std::shared_ptr<WorkState> mark) override;

 private:
  // Shared with the thread: the last handle may be dropped by a callback that runs on that very thread.
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

/// Runs f on a thread of its own, for what waits for streams and is asked for by the thread of one. If there
/// is no thread to be had, f never runs: a warning says so.
void run_aside(std::function<void()> f);

/// The point of a stream that an event marks. In a forked child, events of its parent mark no other.
class EventState {
 public:
  void set(std::shared_ptr<WorkState> mark);
  std::shared_ptr<WorkState> get() const;  ///< nullptr: none

 private:
  const unsigned forks_ = forks();
  mutable std::mutex mutex_;
  std::shared_ptr<WorkState> mark_;
};

}  // namespace ouro::rt
