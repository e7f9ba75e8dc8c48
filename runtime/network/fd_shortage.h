// How long a listener rests where no file descriptor is left: who waits in its queue would wake it at once,
// for ever. Used by both listeners, for other hosts and for this one.
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
  /// Longer each time, up to a second.
  std::chrono::milliseconds rest() {
    using std::chrono::milliseconds;
    return rest_ = std::clamp(rest_ * 2, milliseconds(10), milliseconds(1000));
  }
  void over() { rest_ = {}; }

 private:
  std::chrono::milliseconds rest_{0};
};

}  // namespace ouro::rt
