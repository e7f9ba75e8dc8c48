// Receives from any source to a GPU, in the background: those of one tag run in sequence, several tags run
// concurrently. Used by backend.h.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// Host streams, as many as there have been busy lanes at once. The destructor waits for all tasks.
class Lanes {
 public:
  using Lane = int;  ///< the tag

  /// Runs the task after earlier tasks of this lane. Errors: resource (no thread); then the task is not run.
  Status add(Lane lane, std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    auto& queue = tasks_[lane];
    if (queue.empty() && idle_.empty()) {
      OURO_ASSIGN(Stream made, Stream::create(Priority::normal, "torch"));
      idle_.push_back(streams_.size());
      streams_.push_back(std::move(made));
    }
    queue.push_back(std::move(task));
    if (queue.size() > 1) return {};  // the stream of the earlier task also runs this one
    const std::size_t over = idle_.back();
    idle_.pop_back();
    const Work queued = streams_[over].run([this, lane, over] { return run(lane, over); });
    if (!queued.test() || queued.wait().ok()) return {};
    tasks_.erase(lane);  // the task was not accepted: this is a forked child
    idle_.push_back(over);
    return queued.wait();
  }

 private:
  Status run(Lane lane, std::size_t over) {
    std::unique_lock lock(mutex_);
    for (auto& queue = tasks_[lane]; !queue.empty(); queue.pop_front()) {
      const std::function<void()> task = std::move(queue.front());
      lock.unlock();
      task();
      lock.lock();
    }
    tasks_.erase(lane);
    idle_.push_back(over);
    return {};
  }

  std::mutex mutex_;
  std::map<Lane, std::deque<std::function<void()>>> tasks_;  ///< the first task of each lane is running
  std::vector<std::size_t> idle_;                            ///< indices into streams_
  std::vector<Stream> streams_;
};

}  // namespace ouro::adapter
