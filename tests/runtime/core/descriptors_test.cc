// Descriptors of the library, and growing files under a limit: what the program around it keeps.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"
#include "runtime/core/segment.h"

namespace ouro {
namespace {

/// The number of the first check that fails in a forked child, which may close and limit what it likes; 0:
/// none; 128 + a signal that ended it.
int in_child(const std::function<int()>& checks) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(checks());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void close_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd) ::close(fd);
}

TEST(Descriptors, OwnedDescriptorIsNeverAStandardOne) {
  EXPECT_EQ(in_child([] {
              close_standard_descriptors();
              Fd a(::open("/dev/null", O_RDONLY | O_CLOEXEC)), b;
              if (a.get() < 3 || (::fcntl(a.get(), F_GETFD) & FD_CLOEXEC) == 0) return 1;
              b.reset(::open("/dev/null", O_RDONLY));
              if (b.get() < 3 || (::fcntl(b.get(), F_GETFD) & FD_CLOEXEC) != 0) return 2;
              b = std::move(a);
              if (b.get() < 3 || a || ::fcntl(b.get(), F_GETFD) < 0) return 3;
              for (int fd = 0; fd < 3; ++fd)
                if (::fcntl(fd, F_GETFD) >= 0) return 4;
              const rlimit few{3, 3};
              ::setrlimit(RLIMIT_NOFILE, &few);
              errno = 0;
              const Fd none(::open("/dev/null", O_RDONLY | O_CLOEXEC));
              return none || errno == 0 || ::fcntl(0, F_GETFD) >= 0 ? 5 : 0;
            }),
            0);
}

TEST(Descriptors, OccupiedStandardDescriptorsAreReservedButUnusable) {
  EXPECT_EQ(in_child([] {
              ::close(1);
              ::close(2);
              const int input = ::fcntl(0, F_GETFL);
              occupy_standard_descriptors();
              occupy_standard_descriptors();
              char byte = 'x';
              if (::write(1, &byte, 1) >= 0 || errno != EBADF) return 1;
              if (::read(2, &byte, 1) >= 0 || errno != EBADF) return 2;
              pollfd seen{1, POLLIN | POLLOUT, 0};
              if (::poll(&seen, 1, 0) != 1 || seen.revents != POLLNVAL) return 3;
              if ((::fcntl(1, F_GETFD) & FD_CLOEXEC) == 0) return 4;
              if (::open("/dev/null", O_RDONLY) < 3) return 5;
              if (::fcntl(0, F_GETFL) != input) return 6;
              // The program may still put something there.
              if (::dup2(0, 1) != 1 || ::fcntl(1, F_GETFL) != input) return 7;
              return 0;
            }),
            0);
}

TEST(FileSizes, ExceedingTheLimitFailsWithoutASignal) {
  EXPECT_EQ(in_child([] {
              char name[] = "/tmp/ouro-file-size-XXXXXX";
              const Fd file(::mkstemp(name));
              ::unlink(name);
              const rlimit ten{10, 10};
              ::setrlimit(RLIMIT_FSIZE, &ten);
              if (write_whole(file.get(), "123456789012") != EFBIG) return 1;
              if (::lseek(file.get(), 0, SEEK_END) != 10) return 2;
              if (file_error(EFBIG).find("limited to 10 bytes (RLIMIT_FSIZE") == std::string::npos) return 3;
              const auto segment = SharedSegment::create(4096, "a test");
              if (segment.ok() || segment.status().message().find("limited to 10 bytes") == std::string::npos)
                return 4;
              sigset_t pending, blocked;
              ::sigpending(&pending);
              ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
              return sigismember(&pending, SIGXFSZ) == 1 || sigismember(&blocked, SIGXFSZ) == 1 ? 5 : 0;
            }),
            0);
}

/// A program that has a handler for SIGXFSZ gets its own signals, from its own writes, and none of the
/// library's.
TEST(FileSizes, OnlyTheProgramsOwnWritesRaiseTheSignal) {
  EXPECT_EQ(in_child([] {
              static volatile std::sig_atomic_t got = 0;
              std::signal(SIGXFSZ, [](int) { got = got + 1; });
              const rlimit none{0, 0};
              ::setrlimit(RLIMIT_FSIZE, &none);
              char name[] = "/tmp/ouro-file-size-XXXXXX";
              const Fd file(::mkstemp(name));
              ::unlink(name);
              std::vector<std::thread> threads;
              for (int t = 0; t < 4; ++t)
                threads.emplace_back([&] {
                  for (int i = 0; i < 100; ++i) (void)write_whole(file.get(), "x");
                });
              for (auto& t : threads) t.join();
              if (got != 0) return 1;
              if (::write(file.get(), "x", 1) >= 0 || errno != EFBIG || got != 1) return 2;
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace ouro
