// Distribution of cores among ranks. Used by Context, groups and executors.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"
#include "runtime/job/job_members.h"

namespace ouro::rt {

/// Whether the ranks of each host can have cores of their own, and how their waiters behave accordingly.
/// Derived from what all of them wrote on their pages before they joined, so that all ranks of the job get
/// the same answer.
class CoreShare {
 public:
  /// `spin`: chosen by the user. `record`: the record of this host.
  CoreShare(const JobMembers&, const Calibration& record, std::optional<std::chrono::microseconds> spin);
  /// How waiters of this rank that are made now keep their core. While the record changes, the result may mix
  /// the old and the new figures. Thread-safe.
  Patience patience() const {
    return {.spin = std::chrono::microseconds(spin_us_.load(std::memory_order_relaxed)),
            .polls = polls_.load(std::memory_order_relaxed),
            .crowded = crowded_};
  }
  /// The same by another record of this host: rt::patience_by, except for what the user has chosen.
  Patience patience_by(const Calibration&) const;
  /// From now on patience() uses this record. Thread-safe.
  void reckon_with(const Calibration&);
  /// Whether every rank of this host can have a core of its own.
  bool enough_here() const { return enough_here_; }
  /// Whether that is true of every host that one of these ranks is on: all ranks get the same answer.
  bool enough_for(const std::vector<int>& ranks) const;
  /// Number of outermost caches of this host that these of its ranks reach: those that ranks are bound to,
  /// and one more for each rank that is not bound, as far as the record has more. One for each rank if the
  /// record shows that cores do not share caches, whatever the system says. At least one.
  std::size_t caches_of(const std::vector<int>& ranks, const Calibration& record) const;

 private:
  friend struct TestAccess;
  const JobMembers& members_;
  std::vector<bool> enough_;  // by host
  bool enough_here_ = false, crowded_ = false;
  const std::optional<std::chrono::microseconds> spin_;
  std::atomic<std::int64_t> spin_us_{0};
  std::atomic<int> polls_{0};
};

}  // namespace ouro::rt
