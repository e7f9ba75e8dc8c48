// Fd: an owned file descriptor. Used wherever the kernel hands one out.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ouro {

// A process may run without standard input, output or error (a daemon). The kernel gives such a number to
// whatever is opened next, and the program's output would then be written into a socket or a segment. Two
// rules prevent that: descriptors of this library have numbers from 3 on (Fd), and
// occupy_standard_descriptors takes the three numbers before libraries below this one (reactors, UCX,
// drivers) open anything.

/// Moves a descriptor that has one of the three standard numbers to one from 3 on. -1, with errno, if there
/// is none or no other number is free.
inline int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const bool closes_on_exec = (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
  const int moved = ::fcntl(fd, closes_on_exec ? F_DUPFD_CLOEXEC : F_DUPFD, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return moved;
}

/// Takes the standard descriptors that are closed, for the rest of the process's life. For the program they
/// behave as before: they are opened with O_PATH, so reading and writing fail with EBADF, poll reports
/// POLLNVAL, and programs that this one executes find them closed. Only opening a file no longer returns one
/// of these numbers. May be called at any time, by any thread: nothing is closed that another thread might
/// have opened there since.
inline void occupy_standard_descriptors() {
  for (int k = 0; k <= STDERR_FILENO; ++k) {
    if (::fcntl(k, F_GETFD) >= 0) continue;
    const int fd = ::open("/dev/null", O_PATH | O_CLOEXEC);  // the lowest number that is free
    if (fd > STDERR_FILENO) ::close(fd);                     // another thread was faster
  }
}

class Fd {
 public:
  Fd() = default;
  /// Takes ownership; the descriptor may get another number (see above).
  explicit Fd(int fd) : fd_(above_standard(fd)) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = above_standard(fd);
  }
  int release() { return std::exchange(fd_, -1); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace ouro
