// Messages in the background: those of one lane one after the other, several lanes at the same time. Used by
// backend.h.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// Streams of the host, as many as there have been busy lanes at once. Destroyed, it ends when all tasks
/// have.
class Lanes {
 public:
  /// Whether it is a receive, of which peer, with which tag: messages of one lane stay in order.
  using Lane = std::tuple<bool, int, int>;

  /// Runs it after what this lane has. Errors: resource (no thread); then it is not run.
  Status add(const Lane& lane, std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    auto& queue = tasks_[lane];
    if (queue.empty() && idle_.empty()) {
      OURO_ASSIGN(Stream made, Stream::create(Priority::normal, "torch"));
      idle_.push_back(streams_.size());
      streams_.push_back(std::move(made));
    }
    queue.push_back(std::move(task));
    if (queue.size() > 1) return {};  // whose stream goes on with this one
    const std::size_t over = idle_.back();
    idle_.pop_back();
    (void)streams_[over].run([this, lane, over] { return run(lane, over); });
    return {};
  }

 private:
  Status run(const Lane& lane, std::size_t over) {
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
  std::map<Lane, std::deque<std::function<void()>>> tasks_;  ///< the first of each runs
  std::vector<std::size_t> idle_;                            ///< indices of streams_
  std::vector<Stream> streams_;
};

}  // namespace ouro::adapter
