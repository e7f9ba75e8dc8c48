// FdShortage: how long a listener pauses when no file descriptor is left: connections in its queue would
// otherwise wake it at once, forever. Used by both listeners, for other hosts and for this one.
#pragma once
#include <algorithm>
#include <cerrno>
#include <chrono>

namespace ouro::rt {

class FdShortage {
 public:
  /// Whether accept4 failed for want of a descriptor or memory.
  static bool caused(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  }
  bool lasts() const { return rest_.count() != 0; }
  /// The next pause: longer each time, from 10 ms up to 1 s.
  std::chrono::milliseconds rest() {
    using std::chrono::milliseconds;
    return rest_ = std::clamp(rest_ * 2, milliseconds(10), milliseconds(1000));
  }
  void over() { rest_ = {}; }

 private:
  std::chrono::milliseconds rest_{0};
};

}  // namespace ouro::rt
