// What the launcher changes in its process while a job runs, and puts back afterwards. Used by launcher.cc.
#pragma once
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <vector>

#include "runtime/core/fd.h"
#include "tools/run/child.h"

namespace ouro::run {

/// Signals arrive as bytes of a descriptor while this lives; the mask is as before afterwards.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) sigaddset(&set_, number);
    ::pthread_sigmask(SIG_BLOCK, &set_, &old_);
    fd_ = Fd(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() {
    while (take() != 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  const Fd& fd() const { return fd_; }
  /// The next signal's number, or 0.
  int take() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{}, old_{};
  Fd fd_;
};

/// Processes whose parent dies come to this one, while this lives.
class Subreaper {
 public:
  Subreaper() : before_(children_of_this_process()) {
    ::prctl(PR_GET_CHILD_SUBREAPER, &old_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() {
    end_orphans(before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, old_);
  }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  std::vector<pid_t> before_;
  int old_ = 0;
};

}  // namespace ouro::run
