// Which figures make a record, and how many tries each takes. What is asked, and what time it is, comes from
// outside, so that tests bring their own. Used where a host is calibrated.
#pragma once
#include <functional>
#include <optional>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// Two cores that can be asked. Each answer is of one try, in nanoseconds; nullopt: the other core did not
/// answer in time, or the system forbids it.
class Probe {
 public:
  virtual ~Probe() = default;
  virtual std::optional<std::uint32_t> handoff() = 0;
  virtual std::optional<CopyCost> copy(kernels::CopyKind, std::size_t bytes) = 0;
  /// kLargePiece as copy() and pull() on small pages, each core for the other and both at once: the means of
  /// what the two took.
  virtual std::optional<CopyCost> together(kernels::CopyKind) = 0;
  virtual std::optional<std::uint32_t> pull_together() = 0;
  /// kLargeBytes from one's private memory into the other's, piece after piece through a shared block, each
  /// core for the other and both at once: the means of the sums of what writing and reading that took.
  virtual std::optional<CopyCost> large(kernels::CopyKind) = 0;
  virtual std::optional<std::uint32_t> pull(std::size_t bytes, bool huge_pages) = 0;
  /// From one thread to the other by sched_yield, on one core.
  virtual std::optional<std::uint32_t> context_switch() = 0;
  /// The other, which sleeps on a futex, until it has answered.
  virtual std::optional<std::uint32_t> wake() = 0;
};

using TimeOf = std::function<Clock::time_point()>;

/// Of each figure the least of several tries, all of them in turn, until `end` or until there are enough. A
/// figure of fewer than three tries is not known: other work may have been in each. Distance and cores are
/// the caller's to fill in.
PairCosts measure(Probe&, const TimeOf& now, Clock::time_point end);

/// The least of a few tries; 0: no answer before `end`.
std::uint32_t measure_handoff(Probe&, const TimeOf& now, Clock::time_point end);

/// Likewise, of a context switch, and of waking a thread.
std::uint32_t measure_context_switch(Probe&, const TimeOf& now, Clock::time_point end);
std::uint32_t measure_wake(Probe&, const TimeOf& now, Clock::time_point end);
/// Nanoseconds of one relax(), rounded up: the least of a few tries of many.
std::uint32_t measure_pause(const TimeOf& now);

/// Whether a hand-off that is measured now may be that of a record. Twice as long or half as long: the
/// processors are farther apart or nearer than they were.
bool same_mode(std::uint32_t recorded, std::uint32_t now);

/// Whether figures of the farthest cores, measured in mid-run, say that a record does not hold any more: the
/// hand-off, or a copy by the kind in force, takes twice as long or half as long. Figures that `now` lacks
/// say nothing.
bool moved(const Calibration& record, const PairCosts& now);
/// The record with its farthest cores as they are now. Of sizes that `now` lacks, each figure changes as that
/// of the next smaller size did. Only of a record that is known.
Calibration revised(const Calibration& record, const PairCosts& now);

}  // namespace ouro::rt
