// Forks the process that does the work, waits for it and clears up after it. Used through guardian.h.
#include "tools/run/guardian.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "tools/run/child.h"
#include "tools/run/guards.h"
#include "tools/run/signals.h"
#include "tools/run/system.h"

namespace ouro::run {
namespace {

/// The report that the child writes into the pipe; a pipe holds much more, so the write does not block.
struct Outcome {
  int code = 0;
  int reason = 0;  // Reason of an error, whose text follows; 0: none
};
constexpr std::size_t kLongestText = 16'384;

/// `report`: a pipe; if no process can read it any more, the guardian has died.
[[noreturn]] void work_and_leave(const std::function<Result<int>(int)>& work, int report) {
  ::setpgid(0, 0);
  const Result<int> result = [&]() -> Result<int> {
    try {
      return work(report);
    } catch (const std::exception& e) {
      return Status(Reason::resource, e.what());
    }
  }();
  Outcome outcome;
  std::string text;
  if (result.ok()) {
    outcome.code = *result;
  } else {
    outcome.reason = static_cast<int>(result.status().reason());
    text = result.status().failure()->text.substr(0, kLongestText);
  }
  const std::string bytes = std::string(reinterpret_cast<const char*>(&outcome), sizeof outcome) + text;
  [[maybe_unused]] const ssize_t n = ::write(report, bytes.data(), bytes.size());
  std::fflush(nullptr);
  ::_exit(0);
}

/// Passes signals on until the child has ended. Returns its wait status.
int attend(pid_t child, Signals& signals) {
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  for (;;) {
    std::vector<pollfd> fds;
    signals.watch(fds);
    fds.push_back({pidfd.get(), POLLIN, 0});
    const int wait = wait_ms({signals.next(), pidfd ? When() : soon()});
    if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) ::kill(child, SIGKILL);
    for (int number; (number = signals.take()) != 0;) {
      ::kill(child, number);
      if (number == SIGTSTP)
        ::kill(::getpid(), SIGSTOP);  // so that a shell sees it as stopped; the child stops the ranks
    }
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status;
  }
}

}  // namespace

Result<int> guarded(const std::string& name, const std::function<Result<int>(int)>& work) {
  const ChildrenCount count;
  std::optional<Subreaper> subreaper(std::in_place);
  Signals signals;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe");
  Fd read_end(ends[0]), write_end(ends[1]);
  std::fflush(nullptr);  // otherwise both processes would write what is buffered
  const pid_t child = ::fork();
  if (child < 0) return system_error("cannot start a process");
  if (child == 0) {
    read_end.reset();
    work_and_leave(work, write_end.get());
  }
  keep_child(child);
  ::setpgid(child, child);
  write_end.reset();
  const int status = attend(child, signals);
  Outcome outcome;
  std::string bytes(sizeof outcome + kLongestText, '\0');
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const ssize_t n = ::read(read_end.get(), bytes.data(), bytes.size());
  if (n < static_cast<ssize_t>(sizeof outcome)) {
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : 1;
    subreaper.reset();  // kills all that the child left behind; only after that may a slow reader of stderr
                        // block this process
    put(STDERR_FILENO, fmt::format("{}: the process that managed the ranks (pid {}) was ended from "
                                   "outside (code {}); all ranks are ended\n",
                                   name, child, code));
    return code;
  }
  std::memcpy(&outcome, bytes.data(), sizeof outcome);
  if (outcome.reason == 0) return outcome.code;
  return Status(static_cast<Reason>(outcome.reason),
                bytes.substr(sizeof outcome, static_cast<std::size_t>(n) - sizeof outcome));
}

}  // namespace ouro::run
