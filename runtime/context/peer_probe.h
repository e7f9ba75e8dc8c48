// Two ranks of a host that measure, in mid-run, what copies between their cores take. Used by group.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/calibration/measure.h"
#include "runtime/health/control_page.h"

namespace ouro::rt {

/// From which operation of a group on, at the end of the first look (revision.h), and which of its ranks is
/// asked.
struct ProbeMeeting {
  std::uint64_t group = 0, seq = 0;
  int rank = 0;
};

/// Copies from an address of the asker's process; false: its memory cannot be read.
using ReadAsker = std::function<bool(std::uint64_t from, void* to, std::size_t bytes)>;

/// Who asks. One group at a time uses a page. Thread-safe.
class PeerProbes {
 public:
  explicit PeerProbes(ControlPage& mine) : mine_(mine) {}
  /// Says who is wanted; false: another group is asking already (one that has not come to its look for 50 ms
  /// loses its place), or one that was asked has not done with it and is not dead.
  bool invite(const ProbeMeeting&, const ControlPage& peer,
              const std::function<bool(int world_rank)>& is_dead);
  /// The group that has invited, at the end of its look: blocks of at most ProbePage::kBytes, until `end`.
  /// nullptr: it has lost its place. Goes before withdraw().
  std::unique_ptr<Probe> meet(std::uint64_t group, Clock::time_point end);
  void withdraw(std::uint64_t group);
  /// Who is asked, at the end of a look, `at`: answers until the asker, a process of this host, is done, or
  /// has nothing to ask for a while, at most 2 ms. Returns at once if it is not invited there, or answers
  /// another.
  void answer(const ControlPage& asker, const ReadAsker& read, const ProbeMeeting& at);

 private:
  ControlPage& mine_;
  std::atomic<bool> answers_{false};
  std::mutex mutex_;
  std::uint64_t holder_ = 0;  // the group that has invited; 0: none
  bool measures_ = false;     // it meets
  Clock::time_point since_{};
  const ControlPage* peer_ = nullptr;  // of the newest question
};

}  // namespace ouro::rt
