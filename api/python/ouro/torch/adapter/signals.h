// Ctrl-C while an operation waits in the thread that called it. Used by this folder.
#pragma once
#include <chrono>
#include <exception>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// While it lives, Python's handlers of signals run about ten times a second while an operation of this
/// thread waits for other ranks. What one of them raises (Ctrl-C: KeyboardInterrupt) ends the operation, and
/// its group, on all ranks. A handler must not call operations of the group that waits.
class TakingSignals {
 public:
  TakingSignals();
  TakingSignals(const TakingSignals&) = delete;
  TakingSignals& operator=(const TakingSignals&) = delete;
  void rethrow() const {  ///< what a handler has raised
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  static Status ask(void* self);
  std::chrono::steady_clock::time_point next_;
  std::exception_ptr raised_;
  InterruptibleWaits waits_;
};

/// Runs handlers of signals that have come, and throws what they raise. The caller does not wait for other
/// ranks.
void take_signals();
constexpr auto kSignalsEvery = std::chrono::milliseconds(100);

}  // namespace ouro::adapter
