// The figures of a record, and the number of tries that each takes. The probe and the clock are parameters,
// so that tests can supply their own. Used to calibrate a host.
#pragma once
#include <functional>
#include <optional>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// Two cores that can be measured. Each result is of one try, in nanoseconds; nullopt: the other core did not
/// answer in time, or the system forbids it.
class Probe {
 public:
  virtual ~Probe() = default;
  virtual std::optional<std::uint32_t> handoff() = 0;
  virtual std::optional<CopyCost> copy(kernels::CopyKind, std::size_t bytes) = 0;
  /// Copies kLargePiece as copy() does, each time to the next place of a ring of kRingBytes: the medians
  /// of one lap.
  virtual std::optional<CopyCost> ring(kernels::CopyKind) = 0;
  /// kLargePiece, as by copy() and by pull() from huge pages, each core for the other and both at once: the
  /// mean of the two times.
  virtual std::optional<CopyCost> together(kernels::CopyKind) = 0;
  virtual std::optional<std::uint32_t> pull_together() = 0;
  /// Ordinary stores to so many bytes, or loads from them, both cores at once: the means of their times.
  struct Accesses {
    AccessCost stores, loads;
  };
  virtual std::optional<Accesses> accesses(std::size_t bytes) = 0;
  /// kLargeBytes from the private memory of one core into that of the other, piece by piece through the four
  /// staging slots of two ranks, each core for the other and both at once: the means of the total write and
  /// read times.
  virtual std::optional<CopyCost> large(kernels::CopyKind) = 0;
  /// kLargeBytes within the private memory of each core, both at once: the mean of the two times.
  virtual std::optional<std::uint32_t> large_local() = 0;
  virtual std::optional<std::uint32_t> pull(std::size_t bytes, bool huge_pages) = 0;
  /// A switch from one thread to the other by sched_yield, on one core.
  virtual std::optional<std::uint32_t> context_switch() = 0;
  /// Time to wake the other thread, which sleeps on a futex, until it has answered.
  virtual std::optional<std::uint32_t> wake() = 0;
};

using TimeOf = std::function<Clock::time_point()>;

/// The least of several tries for each figure. All figures are measured in turn, until `end` or until there
/// are enough tries. A figure with fewer than three tries counts as not known, since other work may have
/// disturbed all of them. For cores that are not the farthest only the hand-off and copies of the built-in
/// kinds are measured, since no other figures are used. The caller fills in distance and cores.
PairCosts measure(Probe&, const TimeOf& now, Clock::time_point end, bool farthest = true);

/// The least of a few tries; 0: too few answers before `end`.
std::uint32_t measure_handoff(Probe&, const TimeOf& now, Clock::time_point end);

/// The same for a context switch, and for waking a thread.
std::uint32_t measure_context_switch(Probe&, const TimeOf& now, Clock::time_point end);
std::uint32_t measure_wake(Probe&, const TimeOf& now, Clock::time_point end);
/// Nanoseconds of one relax(), rounded up: the least of a few tries of many calls.
std::uint32_t measure_pause(const TimeOf& now);

/// Whether a hand-off measured now is consistent with that of a record. If it takes at least twice as long,
/// or at most half as long, the processors are farther apart or nearer than they were.
bool same_mode(std::uint32_t recorded, std::uint32_t now);

/// Whether figures of the farthest cores, measured during a run, show that a record does not hold any more:
/// the hand-off, or a copy by the kind for slots, takes twice as long or half as long. Figures that `now`
/// lacks are ignored.
bool moved(const Calibration& record, const PairCosts& now);
/// The record with the current figures of its farthest cores. For sizes that `now` lacks, each figure changes
/// by the same ratio as that of the next smaller size. Precondition: record.known().
Calibration revised(const Calibration& record, const PairCosts& now);

}  // namespace ouro::rt
