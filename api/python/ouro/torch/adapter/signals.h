// Ctrl-C while an operation waits in the thread that called it. Used by this folder.
#pragma once
#include <chrono>
#include <exception>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// While it lives and an operation of this thread waits for other ranks, Python's signal handlers run about
/// ten times a second. An exception from a handler (Ctrl-C: KeyboardInterrupt) ends the operation, and its
/// group, on all ranks. A handler must not call operations of the waiting group.
class TakingSignals {
 public:
  TakingSignals();
  TakingSignals(const TakingSignals&) = delete;
  TakingSignals& operator=(const TakingSignals&) = delete;
  void rethrow() const {  ///< throws the exception of a handler
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  static Status ask(void* self);
  std::chrono::steady_clock::time_point next_;
  std::exception_ptr raised_;
  InterruptibleWaits waits_;
};

/// Runs pending signal handlers and throws their exceptions. For callers that do not wait for other ranks.
void take_signals();
constexpr auto kSignalsEvery = std::chrono::milliseconds(100);

}  // namespace ouro::adapter
