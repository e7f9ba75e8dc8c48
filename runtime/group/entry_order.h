// EntryOrder: the order in which operations enter the streams of a device. Used by the sequencer.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "runtime/group/failure_detector.h"

namespace ouro::rt {

/// An operation that enters streams takes a place together with its ticket, and enters when all places before
/// have been left. Work in streams then never waits for a later turn. Only one operation at a time is
/// in its place.
class EntryOrder {
 public:
  explicit EntryOrder(const FailureDetector& detector) : detector_(detector) {}

  /// Takes the next place. `by_call`: the calling thread enters itself; else a stream's thread will. Called
  /// by one thread at a time.
  std::uint64_t take(bool by_call) {
    const std::uint64_t place = taken_++;
    if (by_call) calls_.store(taken_, std::memory_order_relaxed);
    return place;
  }
  /// Waits for a place. False: the group has failed first; neither this place nor a later one will
  /// be reached.
  bool await(std::uint64_t place);
  /// Leaves a place, so that the next operation can enter.
  void leave(std::uint64_t place);
  /// Returns when all operations that calls enter themselves have entered, or the group has failed.
  void await_calls() { (void)await(calls_.load(std::memory_order_relaxed)); }

 private:
  const FailureDetector& detector_;
  std::uint64_t taken_ = 0;
  std::atomic<std::uint64_t> calls_{0};  // the place after the last one taken by a call
  std::atomic<std::uint64_t> left_{0};   // places that have been left
  std::mutex mutex_;
  std::condition_variable cv_;
};

}  // namespace ouro::rt
