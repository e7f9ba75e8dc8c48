// The order in which operations enter the streams of a device. Used by the sequencer.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/group/failure_detector.h"

namespace ouro::rt {

/// Whatever enters streams takes a place together with its ticket, and enters when all places before have
/// been left: what stands in streams then never waits for a turn that lies behind it. Whoever is in its place
/// is alone.
class EntryOrder {
 public:
  explicit EntryOrder(const FailureDetector& detector) : detector_(detector) {}

  /// `by_call`: this call enters; else a thread of a stream will. By one thread at a time.
  std::uint64_t take(bool by_call) {
    const std::uint64_t place = taken_++;
    if (by_call) calls_.store(taken_, std::memory_order_relaxed);
    return place;
  }
  /// False if the group has failed before the place has come. It never comes then, nor does a later one.
  bool await(std::uint64_t place);
  void leave(std::uint64_t place);
  /// Returns when all that calls were to enter has entered, or the group has failed.
  void await_calls() { (void)await(calls_.load(std::memory_order_relaxed)); }

 private:
  const FailureDetector& detector_;
  std::uint64_t taken_ = 0;
  std::atomic<std::uint64_t> calls_{0};  // the place after the last of a call's
  std::atomic<std::uint64_t> left_{0};   // places that have been left
  std::mutex mutex_;
  std::condition_variable cv_;
};

}  // namespace ouro::rt
