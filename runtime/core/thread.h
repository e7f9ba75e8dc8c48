// Threads of the library: they have names, receive none of the program's signals, and do not end the process
// by an exception. Used wherever the library starts a thread; it starts none in any other way.
#pragma once
#include <signal.h>

#include <functional>
#include <string>
#include <thread>

namespace ouro {

/// While an object lives, the calling thread blocks all signals but those of its own faults (SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGTRAP, SIGSYS). Threads that it starts meanwhile, in whichever library, block them for
/// their whole life. Without this, a signal that a program blocks in its own threads, to wait for it with
/// sigwait or signalfd, would be delivered to a thread of the library, which does not block it, and end
/// the process.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// As std::thread, but an exception of the body is logged and ends only the thread.
class Thread {
 public:
  Thread() = default;
  /// `name` is cut at 15 bytes. Throws std::system_error if the system has no thread left. Programs that the
  /// body starts inherit the blocked signals.
  Thread(std::string name, std::function<void()> body);
  bool joinable() const { return thread_.joinable(); }
  void join() { thread_.join(); }
  void detach() { thread_.detach(); }
  std::thread::id get_id() const { return thread_.get_id(); }

 private:
  std::thread thread_;
};

/// Calls `body` until it returns. If it throws (no memory, no free descriptor), its work at that moment is
/// lost: the exception is logged under the name `what`, at most once in 10 s, and `body` is called again
/// after a pause of 10 ms. The pause doubles, up to 320 ms, each time `body` fails again within a second.
void persist(const char* what, const std::function<void()>& body);

}  // namespace ouro
