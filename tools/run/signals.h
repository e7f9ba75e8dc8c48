// Signals as bytes of a descriptor, and the death of the process that this one works for. Used in
// this folder.
#pragma once
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <vector>

#include "runtime/core/fd.h"
#include "tools/run/orphans.h"
#include "tools/run/system.h"

namespace ouro::run {

/// Whether the signal ends a job; other signals are passed on to the ranks, and the job continues.
inline bool ends_the_job(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT || number == SIGKILL;
}

/// While an object lives, signals are received here; afterwards the signal mask is restored. A signal that
/// this process was started to ignore (nohup, a script's background job) remains ignored.
class Signals {
 public:
  enum class Which { all, ending };
  static constexpr std::size_t kWatched = 2;  ///< number of descriptors that watch() appends

  /// `above`: the writing end of a pipe of which only the process for which this one works has the reading
  /// end, or -1; the death of that process is reported as SIGKILL.
  explicit Signals(Which which = Which::all, int above = -1) : above_(above) {
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);  // a failed write reports it
    sigaddset(&set_, SIGCHLD);  // reparented children are reaped here, others by their callers
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) add(number);
    if (which == Which::all)
      for (int number : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) add(number);
    ::pthread_sigmask(SIG_BLOCK, &set_, &old_);
    fd_ = Fd(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));  // none: see next()
  }
  ~Signals() {
    above_ = -1;
    while (take() != 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void watch(std::vector<pollfd>& fds) const {
    fds.push_back({fd_.get(), POLLIN, 0});
    fds.push_back({above_, 0, 0});  // POLLERR: no process can read it any more
  }
  /// The time that poll may wait: for ever, or, on a system without signalfd, a moment.
  When next() const { return fd_ ? When() : soon(); }
  /// The next signal's number, or 0.
  int take() {
    fetch();
    if (early_.empty()) return 0;
    const int number = early_.front();
    early_.pop_front();
    return number;
  }
  /// Whether a signal that ends the job has arrived; `take` returns it later.
  bool ending() {
    fetch();
    return std::any_of(early_.begin(), early_.end(), ends_the_job);
  }

 private:
  void add(int number) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_IGN) sigaddset(&set_, number);
  }
  void fetch() {
    for (int number; (number = fetch_one()) > 0;)
      if (number == SIGCHLD)
        reap_orphans();
      else if (number != SIGPIPE)
        early_.push_back(number);
    pollfd gone{above_, 0, 0};
    if (above_ >= 0 && ::poll(&gone, 1, 0) > 0) {
      early_.push_back(SIGKILL);
      above_ = -1;
    }
  }

  /// A signal that is pending, or 0 or less.
  int fetch_one() {
    signalfd_siginfo info;
    if (fd_)
      return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
    const timespec at_once{};
    return ::sigtimedwait(&set_, nullptr, &at_once);
  }

  sigset_t set_{}, old_{};
  Fd fd_;
  int above_;
  std::deque<int> early_;
};

}  // namespace ouro::run
