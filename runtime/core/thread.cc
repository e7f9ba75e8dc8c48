// Threads of the library. See thread.h.
#include "runtime/core/thread.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "runtime/core/float_mode.h"
#include "runtime/core/log.h"

namespace ouro {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds kFirstPause = 10ms, kLastPause = 320ms;
constexpr auto kCalm = 1s;  // without a failure; then the next pause is the first again
constexpr auto kLogAgain = 10s;

/// Logs an exception. A log line needs memory, too; if there is none, nothing is logged.
void log_exception(const std::string& who, const std::exception& e) {
  try {
    OURO_WARN("{}: {}", who, e.what());
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}
SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Thread::Thread(std::string name, std::function<void()> body) {
  const SignalsBlocked blocked;
  thread_ = std::thread([name = std::move(name), body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    const StandardFloats floats;  // not the mode of the thread that started this one
    try {
      body();
    } catch (const std::exception& e) {
      log_exception("thread " + name + " ends", e);
    }
  });
}

void persist(const char* what, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  auto pause = kFirstPause;
  Clock::time_point failed{}, logged{};
  for (;;) try {
      return body();
    } catch (const std::exception& e) {
      const auto now = Clock::now();
      pause = now - failed < kCalm ? std::min(2 * pause, kLastPause) : kFirstPause;
      if (logged == Clock::time_point{} || now - logged > kLogAgain) {
        logged = now;
        log_exception(what, e);
      }
      std::this_thread::sleep_for(pause);
      failed = Clock::now();
    }
}

}  // namespace ouro
