// A stopwatch accurate to tens of nanoseconds. Used by the probes of calibration.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "runtime/core/per_process.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

class Stopwatch {
 public:
  Stopwatch() : begin_(Clock::now()) {}
  /// Nanoseconds since construction, without the time that reading the clock takes; at least one.
  std::uint32_t elapsed() const {
    const std::int64_t took = std::chrono::nanoseconds(Clock::now() - begin_).count() - reading();
    return static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(took, 1, std::numeric_limits<std::uint32_t>::max()));
  }
  /// The same, once other cores can see all stores so far. A core continues while it still waits for the
  /// lines of some 64 stores, but other cores do not see later stores before those are done.
  std::uint32_t stored() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return elapsed();
  }

 private:
  /// The time of reading the clock: the least of a few tries.
  static std::int64_t reading() {
    static constinit MadeOnce<const std::int64_t> least;
    return least.get([] {
      auto found = Clock::duration::max();
      for (int i = 0; i < 32; ++i) {
        const auto begin = Clock::now();
        found = std::min(found, Clock::now() - begin);
      }
      return std::int64_t{std::chrono::nanoseconds(found).count()};
    });
  }
  const Clock::time_point begin_;
};

}  // namespace ouro::rt
