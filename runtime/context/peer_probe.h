// Two ranks of a host measure, during a run, the time of copies between their cores. Used by group.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/calibration/measure.h"
#include "runtime/health/control_page.h"

namespace ouro::rt {

/// When and with whom a group measures: at the end of the first revision point (revision.h) from operation
/// `seq` on, with its rank `rank`.
struct ProbeMeeting {
  std::uint64_t group = 0, seq = 0;
  int rank = 0;
};

/// Copies from an address of the asker's process; returns false if its memory cannot be read.
using ReadAsker = std::function<bool(std::uint64_t from, void* to, std::size_t bytes)>;

/// Both sides of such measurements. Only one group at a time uses a page. Thread-safe.
class PeerProbes {
 public:
  explicit PeerProbes(ControlPage& mine) : mine_(mine) {}
  /// Publishes which rank is invited. Returns false if another group is asking already (one that has not
  /// reached its revision point for 50 ms loses its turn), or if a rank that was asked before has not
  /// finished and is not dead.
  bool invite(const ProbeMeeting&, const ControlPage& peer,
              const std::function<bool(int world_rank)>& is_dead);
  /// For the group that has invited, at the end of its revision point: a probe with blocks of at most
  /// ProbePage::kBytes, until `end`. nullptr: it has lost its turn. The probe must be destroyed
  /// before withdraw().
  std::unique_ptr<Probe> meet(std::uint64_t group, Clock::time_point end);
  void withdraw(std::uint64_t group);
  /// For the invited rank, at the end of a revision point, `at`: answers until the asker, a process of this
  /// host, has finished, or asks nothing for a while; at most 2 ms. Returns at once if it is not invited
  /// there, or is answering another rank.
  void answer(const ControlPage& asker, const ReadAsker& read, const ProbeMeeting& at);

 private:
  ControlPage& mine_;
  std::atomic<bool> answers_{false};
  std::mutex mutex_;
  std::uint64_t holder_ = 0;  // the group that has invited a rank; 0: none
  bool measures_ = false;     // it has begun to measure
  Clock::time_point since_{};
  const ControlPage* peer_ = nullptr;  // the rank asked last
};

}  // namespace ouro::rt
