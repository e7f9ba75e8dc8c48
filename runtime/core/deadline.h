// Points in time that lie a timeout away, however long that is. Used wherever a timeout comes from a caller.
#pragma once
#include <algorithm>
#include <chrono>

#include "runtime/core/wait.h"

namespace ouro {

/// The longest that anything is waited for: a hundred years. A few of them after each other, in nanoseconds
/// since the machine was started, still fit into 64 bits, as Milliseconds::max() does not.
inline constexpr std::chrono::hours kLongestWait{24 * 365 * 100};

/// A duration of a caller's, cut to the longest wait; negative ones stay negative.
template <class Rep, class Period>
constexpr std::chrono::duration<Rep, Period> bounded(std::chrono::duration<Rep, Period> d) {
  constexpr auto most = std::chrono::duration_cast<std::chrono::duration<Rep, Period>>(kLongestWait);
  return std::clamp(d, -most, most);
}

/// The point in time that far from now, or from `start`. Negative: that of now.
template <class Rep, class Period>
Clock::time_point deadline_after(std::chrono::duration<Rep, Period> d,
                                 Clock::time_point start = Clock::now()) {
  return start + std::max(bounded(d), std::chrono::duration<Rep, Period>::zero());
}

}  // namespace ouro
