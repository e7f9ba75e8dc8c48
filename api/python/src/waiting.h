// Waiting without the GIL, such that Ctrl-C ends it. Used by this folder.
#pragma once
#include <chrono>
#include <type_traits>
#include <utility>

#include "api/python/src/binding.h"

namespace ouro::python {

/// Records which thread is the interpreter's main one; called when the module is loaded.
void remember_main_thread();
bool in_main_thread();

/// Releases the GIL while it lives. In the main thread, signal handlers run about ten times a second while an
/// operation waits; an exception from a handler ends the operation, and check_interrupted raises it.
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

/// Raises the exception of a signal handler from a call that failed; otherwise the failure, if there is one.
void check_interrupted(const Status& s);

/// Calls `call` without the GIL; it returns a Status or a Result. Returns the value, or raises the failure.
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
