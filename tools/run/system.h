// Small wrappers of system calls that the launcher and its agents share. Used in this folder.
#pragma once
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/file_size.h"
#include "runtime/core/status.h"

namespace ouro::run {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using When = std::optional<Clock::time_point>;  ///< nullopt: never

inline Status system_error(std::string_view what) {
  return Status(Reason::resource, fmt::format("{}: {}", what, file_error(errno)));
}

/// `bytes` random bytes as hexadecimal digits.
inline Result<std::string> random_hex(std::size_t bytes) {
  std::vector<unsigned char> raw(bytes);  // getrandom returns up to 256 bytes in one piece
  if (::getrandom(raw.data(), bytes, 0) != static_cast<ssize_t>(bytes))
    return system_error("cannot get random bytes");
  return fmt::format("{:02x}", fmt::join(raw, ""));
}

/// Writes all of it. Blocks on a slow reader, so it must not be used while ranks run (see outlet.h). Returns
/// false if no process reads it any more.
inline bool put(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

inline When earliest(std::initializer_list<When> all) {
  When first;
  for (const When& t : all)
    if (t && (!first || *t < *first)) first = t;
  return first;
}

/// Timeout for poll: milliseconds until the earliest of them, -1 if all are never.
inline int wait_ms(std::initializer_list<When> all) {
  int wait = -1;
  for (const When& t : all) {
    if (!t) continue;
    const auto left = std::chrono::ceil<milliseconds>(*t - Clock::now()).count();
    const int bounded = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
    wait = wait < 0 ? bounded : std::min(wait, bounded);
  }
  return wait;
}

/// The time of the next check for something that the system does not report by a descriptor: signals without
/// signalfd, the end of a process without pidfd_open (Linux before 5.3, seccomp filters of containers).
inline When soon() { return Clock::now() + milliseconds(20); }

/// True once, when `t` has passed; then `t` is reset to never.
inline bool due(When& t) {
  if (!t || Clock::now() < *t) return false;
  t.reset();
  return true;
}

}  // namespace ouro::run
