// Deadlines from timeouts of any length, without overflow. Used wherever a timeout comes from a caller.
#pragma once
#include <algorithm>
#include <chrono>

#include "runtime/core/wait.h"

namespace ouro {

/// The longest wait: a hundred years. The sum of two of them, in nanoseconds since the machine was started,
/// still fits into 64 bits; Milliseconds::max() does not.
inline constexpr std::chrono::hours kLongestWait{24 * 365 * 100};

/// A caller's duration, clamped to the longest wait in either direction.
template <class Rep, class Period>
constexpr std::chrono::duration<Rep, Period> bounded(std::chrono::duration<Rep, Period> d) {
  constexpr auto most = std::chrono::duration_cast<std::chrono::duration<Rep, Period>>(kLongestWait);
  return std::clamp(d, -most, most);
}

/// The point in time `d` after `start`; a negative `d` counts as zero.
template <class Rep, class Period>
Clock::time_point deadline_after(std::chrono::duration<Rep, Period> d,
                                 Clock::time_point start = Clock::now()) {
  return start + std::max(bounded(d), std::chrono::duration<Rep, Period>::zero());
}

}  // namespace ouro
