// Runs Python's signal handlers in a thread that waits. See signals.h.
#include "signals.h"

#include <pybind11/pybind11.h>

namespace ouro::adapter {
namespace {

thread_local bool handling = false;  // a handler is running inside an operation that waits

}  // namespace

void take_signals() {
  if (handling || !Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire held;
  handling = true;
  const int raised = PyErr_CheckSignals();
  handling = false;
  if (raised != 0) throw pybind11::error_already_set();
}

// next_ is set later, in ask(): most operations end before that and need not read the clock.
TakingSignals::TakingSignals() : next_(), waits_(&TakingSignals::ask, this) {}

Status TakingSignals::ask(void* self) {
  auto& signals = *static_cast<TakingSignals*>(self);
  const auto now = std::chrono::steady_clock::now();
  if (signals.next_ == decltype(now){}) signals.next_ = now + kSignalsEvery;
  if (now < signals.next_) return {};
  signals.next_ = now + kSignalsEvery;
  try {
    take_signals();
    return {};
  } catch (...) {
    signals.raised_ = std::current_exception();
    return {Reason::revoked, "a signal handler of its Python program raised an exception while it waited"};
  }
}

}  // namespace ouro::adapter
