// InFlight: the operation that a rank is currently in, for the code that runs it and for messages about it;
// and the suspicion that a peer is in another one. Used by executors and group.
#pragma once
#include <bit>

#include "runtime/core/wait.h"
#include "runtime/plan/plan.h"

namespace ouro::rt {

struct InFlight {
  const Plan* plan = nullptr;
  std::uint64_t seq = 0;  ///< of the operation in its group, from 1; 0: none
  Clock::time_point start = {};
  bool late_said = false;             ///< a warning has named the ranks that have not entered
  Clock::time_point left_since = {};  ///< when this rank first noticed that a needed rank had left
  /// The one rank that this rank waits for, if only that rank itself knows whether it will take part (mix;
  /// ranks of other hosts), and whether this rank waits for it to send or to take; -1: all ranks. Written by
  /// the executor.
  struct Awaited {
    int peer = -1;
    bool sends = false;
    Clock::time_point left_since =
        {};  ///< when this rank first noticed that it had left; written by the failure detector
  } awaited = {};
  /// A rank of this host whose process is stopped, since when, and when this was last checked; -1: none.
  struct Stopped {
    int rank = -1;
    std::uint64_t seq = 0;  ///< sequence number of the operation at that check
    Clock::time_point since = {}, checked = {};
  } stopped = {};
  /// The signatures of all operations of the group, including this one, folded. Ranks may disagree in an
  /// operation in which neither waits for the other (such as two roots); they detect it in the next one in
  /// which they meet.
  std::uint64_t history = 0;
  void add_to_history(std::uint64_t signature) { history = std::rotl(history, 7) + signature; }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

/// The suspicion that the words that rank `rank` has published, at `where`, belong to another operation. An
/// executor cannot determine more; the group finds out which ranks disagree, and writes the text, which is
/// empty here.
inline Status suspicion(int rank, const char* where) {
  return Status(Failure{.reason = Reason::mismatch, .rank = rank, .detector = where});
}
inline bool is_suspicion(const Failure& f) { return f.reason == Reason::mismatch && f.text.empty(); }

}  // namespace ouro::rt
