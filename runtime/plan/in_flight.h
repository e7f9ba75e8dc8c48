// InFlight: the operation that a rank is in, for those who run it and for messages about it; and the
// suspicion that a peer is in another. Used by executors and group.
#pragma once
#include <bit>

#include "runtime/core/wait.h"
#include "runtime/plan/plan.h"

namespace ouro::rt {

struct InFlight {
  const Plan* plan = nullptr;
  std::uint64_t seq = 0;  ///< of the operation in its group, from 1; 0: none
  Clock::time_point start = {};
  bool late_said = false;
  Clock::time_point left_since = {};  ///< when a rank that is needed was first seen to have left
  /// Whom this rank waits for where that one alone knows whether it comes (mix; ranks of other hosts), and
  /// whether it sends or takes; -1: all. Written by the executor.
  struct Awaited {
    int peer = -1;
    bool sends = false;
    Clock::time_point left_since = {};  ///< when it was first seen to have left; written by who looks
  } awaited = {};
  /// A rank of this host whose process stands still, since when, and when that was looked at; -1: none.
  struct Stopped {
    int rank = -1;
    std::uint64_t seq = 0;  ///< of the operation meanwhile
    Clock::time_point since = {}, looked = {};
  } stopped = {};
  /// The signatures of all operations of the group, this one included, folded: ranks that disagreed in one in
  /// which neither waited for the other, as two roots do, see it in the next in which they meet.
  std::uint64_t history = 0;
  void add_to_history(std::uint64_t signature) { history = std::rotl(history, 7) + signature; }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

/// What rank `rank` shows, `where`, belongs to another operation. An executor knows no more: the group finds
/// out who disagrees with whom, and writes the text that this failure has not.
inline Status suspicion(int rank, const char* where) {
  return Status(Failure{.reason = Reason::mismatch, .rank = rank, .detector = where});
}
inline bool is_suspicion(const Failure& f) { return f.reason == Reason::mismatch && f.text.empty(); }

}  // namespace ouro::rt
