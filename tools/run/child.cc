// fork, exec, kill and reap, with nothing left behind. Used by the launcher.
#include "tools/run/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tools/run/open_files.h"
#include "tools/run/orphans.h"
#include "tools/run/system.h"

namespace ouro::run {
namespace {

struct Pipe {
  Fd read, write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

struct Plan {
  char* const* argv;
  char* const* environment;
  int in, out, err, report;
  pid_t parent;
  int death_signal;
  const rt::Binding& binding;
  const rlimit* limit;
};

/// The report that the child writes to a pipe before it executes the program. A failure of the stage `memory`
/// is not fatal.
struct Report {
  enum class Stage : int { none, cpus, memory, program } stage = Stage::none;
  int error = 0;
};

void send_report(int fd, Report::Stage stage, int error) {
  const Report report{stage, error};
  [[maybe_unused]] const ssize_t n = ::write(fd, &report, sizeof report);
}

/// Runs in the child: makes only calls that are safe after fork in a program with threads.
[[noreturn]] void become(const Plan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, plan.death_signal);
  if (::getppid() != plan.parent) ::_exit(1);  // the parent died before the line above
  for (int number : {SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
  if (plan.limit != nullptr) ::setrlimit(RLIMIT_NOFILE, plan.limit);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int error = plan.binding.bind_thread(); error != 0) {
    send_report(plan.report, Report::Stage::cpus, error);
    ::_exit(127);
  }
  if (const int error = plan.binding.prefer_memory(); error != 0)
    send_report(plan.report, Report::Stage::memory, error);
  if (::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 && ::dup2(plan.err, 2) >= 0) {
    // dup2 of a descriptor onto itself keeps close-on-exec.
    if (plan.in == 0) ::fcntl(0, F_SETFD, 0);
    ::execvpe(plan.argv[0], plan.argv, plan.environment);
  }
  send_report(plan.report, Report::Stage::program, errno);
  ::_exit(127);
}

/// The next report, or an empty one: the pipe closes by itself when exec succeeds. EINTR or ETIME: the wait
/// ended first.
Report next_report(int fd, const Patience& patience) {
  Report report;
  for (;;) {
    std::vector<pollfd> fds{{fd, POLLIN, 0}};
    if (patience.signals != nullptr) patience.signals->watch(fds);
    const When next_poll = patience.signals != nullptr ? patience.signals->next() : When();
    ::poll(fds.data(), fds.size(), wait_ms({patience.limit, next_poll}));
    if (fds[0].revents == 0) {
      if (patience.signals != nullptr && patience.signals->ending()) return {Report::Stage::program, EINTR};
      if (patience.limit && Clock::now() >= *patience.limit) return {Report::Stage::program, ETIME};
      continue;
    }
    const ssize_t n = ::read(fd, &report, sizeof report);  // a write this small is never torn
    if (n < 0 && errno == EINTR) continue;
    return n == sizeof report ? report : Report{};
  }
}

}  // namespace

std::string Ending::text() const {
  if (signal != 0) return fmt::format("was killed by signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("exited with code {}", code);
}

bool Child::has_ended(const pollfd& seen) const {
  if (pidfd) return seen.revents != 0;
  siginfo_t what{};
  return pid != 0 && !ending &&
         ::waitid(P_PID, static_cast<id_t>(pid), &what, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         what.si_pid == pid;
}

void Child::signal_group(int number) const { ::kill(-pid, number); }

void Child::reap() {
  signal_group(SIGKILL);
  int status = 0;
  pid_t got;
  do got = ::waitpid(pid, &status, 0);
  while (got < 0 && errno == EINTR);
  forget_child(pid);
  if (got != pid) {
    ending = Ending{.code = 255, .signal = 0};  // other code in this process has already taken the status
  } else if (WIFSIGNALED(status)) {
    ending = Ending{.code = 0, .signal = WTERMSIG(status)};
  } else {
    ending = Ending{.code = WEXITSTATUS(status), .signal = 0};
  }
  pidfd.reset();
}

Result<std::variant<Child, StartError>> spawn(const std::vector<std::string>& argv,
                                              const Environment& environment, int stdin_fd,
                                              const rt::Placement& place, int death_signal,
                                              Patience patience) {
  Result<Pipe> out = make_pipe(), err = make_pipe(), report = make_pipe();
  for (const Result<Pipe>* p : {&out, &err, &report}) {
    if (!p->ok()) return p->status();
  }
  std::vector<std::string> settings;
  for (const auto& [key, value] : environment) settings.push_back(key + "=" + value);
  const std::vector<char*> arguments = pointers(argv), variables = pointers(settings);
  const rt::Binding binding(place);
  const Plan plan{arguments.data(),    variables.data(), stdin_fd,     out->write.get(), err->write.get(),
                  report->write.get(), ::getpid(),       death_signal, binding,          given_limit()};
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("cannot start a process");
  if (pid == 0) become(plan);
  keep_child(pid);
  ::setpgid(pid, pid);  // in the parent as well, so that the group exists before the first kill; EACCES after
                        // exec is fine
  report->write.reset();
  Report said = next_report(report->read.get(), patience);
  Child child;
  if (said.stage == Report::Stage::memory) {
    child.memory_error = said.error;
    said = next_report(report->read.get(), patience);
  }
  if (said.stage != Report::Stage::none) {
    ::kill(pid, SIGKILL);
    // A process that hangs in the system may not die until the system lets it: it is left to whichever
    // process reaps orphans.
    for (int i = 0; i < 50 && ::waitpid(pid, nullptr, WNOHANG) == 0; ++i) ::poll(nullptr, 0, 10);
    forget_child(pid);
    return std::variant<Child, StartError>(StartError{said.error, said.stage == Report::Stage::cpus});
  }
  child.pid = pid;
  child.pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by definition
  child.out = std::move(out->read);
  child.err = std::move(err->read);
  for (const Fd* fd : {&child.out, &child.err}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  return std::variant<Child, StartError>(std::move(child));
}

}  // namespace ouro::run
