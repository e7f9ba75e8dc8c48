// The only place where programs write to standard output. See output.h.
#include "tools/cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"

namespace ouro::tools {
namespace {

struct State {
  std::mutex mutex;
  int error = 0;  ///< errno of the first write that failed
  std::array<bool, 3> closed{};
};

State& state() {
  static State* const one = new State;  // never destroyed: threads may still print at exit
  return *one;
}

void fill_gaps() {
  for (int fd = 0; fd < 3; ++fd)
    state().closed[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFD) < 0 && errno == EBADF;
  occupy_standard_descriptors();
}

/// Ends the program by SIGPIPE as if the signal had never been ignored.
void end_by_sigpipe() {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
  ::raise(SIGPIPE);
}

/// Some file systems (quotas, NFS) report only on closing that written data is lost; closing any copy of the
/// descriptor makes them report it.
int close_error() {
  const int copy = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  return copy < 0 || ::close(copy) == 0 ? 0 : errno;
}

}  // namespace

int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n == 0) {
      return EIO;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd room{descriptor, POLLOUT, 0};
      if (::poll(&room, 1, -1) < 0 && errno != EINTR) return errno;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool was_closed(int descriptor) {
  return descriptor >= 0 && descriptor < 3 && state().closed[static_cast<std::size_t>(descriptor)];
}

void print_text(std::string_view text) {
  const std::lock_guard lock(state().mutex);
  int& error = state().error;
  if (error != 0 || text.empty()) return;
  error = was_closed(STDOUT_FILENO) ? EBADF : write_all(STDOUT_FILENO, text);
  if (error == EPIPE) end_by_sigpipe();
}

void complain_text(std::string_view text) { (void)write_all(STDERR_FILENO, text); }

int run_program(std::string_view name, const std::function<int()>& body) {
  fill_gaps();
  block_file_size_signal();  // a file that grows too large is an error
  const int code = body();
  int error = 0;
  {
    const std::lock_guard lock(state().mutex);
    error = state().error;
  }
  if (error == 0 && !was_closed(STDOUT_FILENO)) error = close_error();
  if (error == 0) return code;
  complain("{}: cannot write standard output: {}\n", name, file_error(error));
  return code == 0 ? 1 : code;
}

}  // namespace ouro::tools
