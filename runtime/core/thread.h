// Threads of the library: they have a name, take none of the program's signals, and do not end the process by
// what they throw. Used by whatever starts a thread; nothing else in the library does.
#pragma once
#include <signal.h>

#include <functional>
#include <string>
#include <thread>

namespace ouro {

/// While it lives, the calling thread blocks all signals but those of its own faults (SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGTRAP, SIGSYS), and so do the threads that it starts meanwhile, for good, whichever
/// library starts them. A program that blocks a signal in its own threads, to wait for it with sigwait or
/// signalfd, would otherwise get it in one of ours, where nothing is blocked, and end.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// As std::thread; what the body throws is logged and ends the thread only.
class Thread {
 public:
  Thread() = default;
  /// `name` is cut at 15 bytes. Throws std::system_error if there is no thread to be had. Programs that the
  /// body starts inherit the blocked signals.
  Thread(std::string name, std::function<void()> body);
  bool joinable() const { return thread_.joinable(); }
  void join() { thread_.join(); }
  void detach() { thread_.detach(); }
  std::thread::id get_id() const { return thread_.get_id(); }

 private:
  std::thread thread_;
};

/// Calls `body` until it returns. What it throws (no memory, no room for another descriptor) costs what it
/// was doing then: it is logged, at most once in 10 s, as trouble of `what`, and the body is called again
/// after a pause of 10 ms, which doubles up to 320 ms as long as it fails again within a second.
void persist(const char* what, const std::function<void()>& body);

}  // namespace ouro
