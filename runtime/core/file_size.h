// Growing files and segments under RLIMIT_FSIZE fails with EFBIG instead of ending the process. Used by all
// code that does so.
#pragma once
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>

namespace ouro {

/// Blocks SIGXFSZ in this thread and those that it starts, for programs of this project. Programs that they
/// execute need a mask of their own.
inline void block_file_size_signal(sigset_t* before = nullptr) {
  sigset_t signal;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signal, before);
}

/// While an object lives, a call of this thread that would exceed the limit returns EFBIG and has no other
/// effect: the kernel sends SIGXFSZ to the calling thread, where it is pending until this object takes it.
/// The program's own mask and handler for the signal are unchanged.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() { block_file_size_signal(&before_); }
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const int error = errno;
    sigset_t signal;
    sigemptyset(&signal);
    sigaddset(&signal, SIGXFSZ);
    const timespec at_once{};
    while (::sigtimedwait(&signal, nullptr, &at_once) < 0 && errno == EINTR) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t before_{};
};

/// Writes all of `text`. Returns 0, or errno.
inline int write_whole(int fd, std::string_view text) {
  const NoFileSizeSignal quiet;
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      return n == 0 ? EIO : errno;
    }
  }
  return 0;
}

/// strerror; for EFBIG also the limit and how to raise it.
inline std::string file_error(int error) {
  rlimit limit{};
  if (error != EFBIG || ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::strerror(error);
  return fmt::format(
      "{}: files and shared memory of this process are limited to {} bytes (RLIMIT_FSIZE; raise `ulimit -f`)",
      std::strerror(error), limit.rlim_cur);
}

}  // namespace ouro
