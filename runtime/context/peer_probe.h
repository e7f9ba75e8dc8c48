// Two ranks of a host that measure, in mid-run, what copies between their cores take. Used by group.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/calibration/measure.h"
#include "runtime/health/control_page.h"

namespace ouro::rt {

/// The operation at whose end two ranks meet, and which rank of the group is asked.
struct ProbeMeeting {
  std::uint64_t group = 0, seq = 0;
  int rank = 0;
};

/// Who asks. One at a time uses a page: on any thread.
class PeerProbes {
 public:
  explicit PeerProbes(ControlPage& mine) : mine_(mine) {}
  /// Says before an operation begins who is wanted at its end; false: this rank is asking already, or one
  /// that was asked has not done with it and is not dead.
  bool invite(const ProbeMeeting&, const ControlPage& peer,
              const std::function<bool(int world_rank)>& is_dead);
  /// The invited rank, at the end of that operation: blocks of at most ProbePage::kBytes, until `end`. Goes
  /// before withdraw().
  std::unique_ptr<Probe> meet(Clock::time_point end);
  void withdraw();
  /// Who is asked, at the end of an operation: answers until the asker, a process of this host, is done, or
  /// has nothing to ask for a while, at most 2 ms. Returns at once if it is not invited there, or answers
  /// another.
  void answer(const ControlPage& asker, pid_t process, const ProbeMeeting&);

 private:
  ControlPage& mine_;
  std::atomic<bool> busy_{false}, answers_{false};
  const ControlPage* peer_ = nullptr;  // of the newest question
};

}  // namespace ouro::rt
