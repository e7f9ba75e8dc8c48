// How calls wait: without the GIL, and so that Ctrl-C ends them. Used by this folder.
#pragma once
#include <chrono>
#include <type_traits>
#include <utility>

#include "api/python/src/binding.h"

namespace ouro::python {

/// Remembers which thread is the interpreter's main one; called when the module is loaded.
void remember_main_thread();
bool in_main_thread();

/// While it lives the GIL is released. In the main thread, handlers of signals run about ten times a second
/// while an operation waits; what one of them raises ends the operation, and is raised by check_interrupted.
class Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  static Status ask(void* self);
  nb::gil_scoped_release release_;
  std::optional<InterruptibleWaits> interruptible_;
  std::chrono::steady_clock::time_point next_;
};

/// Raises what a signal handler has raised during a call that failed; else the failure, if there is one.
void check_interrupted(const Status& s);

/// The value of what `call` returns, a Status or a Result, called without the GIL; or its failure is raised.
template <class Call>
auto waited(Call call) {
  auto result = [&] {
    Waiting waiting;
    return call();
  }();
  if constexpr (std::is_same_v<decltype(result), Status>) {
    check_interrupted(result);
  } else {
    check_interrupted(result.status());
    return *std::move(result);
  }
}

}  // namespace ouro::python
