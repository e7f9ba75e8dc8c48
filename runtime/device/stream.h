// Host streams: ordered queues run by one thread each, work states and events.
// Used by groups (operations on a stream) and, through the public handles, by users.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// The outcome of one operation, to be waited for by anybody.
struct WorkState {
  void complete(Status outcome);
  /// False if `until` passed first.
  bool wait_until(Clock::time_point until);
  void wait();
  bool done() const;
  Status outcome() const;
  void then(std::function<void(const Status&)> f);

 private:
  mutable std::mutex mutex_;
  std::condition_variable cv_;
  bool done_ = false;
  Status outcome_;
  std::vector<std::function<void(const Status&)>> callbacks_;
};

class HostStream {
 public:
  /// nice: how much the thread yields to others (0 normal; -5 needs a privilege and is best effort).
  HostStream(std::string name, int nice);
  ~HostStream();  ///< runs what is queued, then joins
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Runs f after all that was enqueued before; an exception becomes a `resource` failure.
  std::shared_ptr<WorkState> enqueue(std::function<Status()> f);
  std::shared_ptr<WorkState> last() const;  ///< of what was enqueued so far; nullptr if nothing

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
  static void loop(const std::shared_ptr<Queue>& queue, const std::string& name, int nice);
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

/// The point of a stream that an event marks.
struct EventState {
  std::mutex mutex;
  std::shared_ptr<WorkState> mark;
};

}  // namespace ouro::rt
