// Cores and ranks. Used by Context, groups and executors.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/calibration/record.h"
#include "runtime/context/job_members.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// Whether the ranks of each host can have cores of their own, and how their waiters behave accordingly.
/// Judged by what all of them wrote on their pages before they joined, so that all ranks of the job come to
/// the same answer.
class CoreShare {
 public:
  /// `spin`: chosen by the user. `record`: this host's.
  CoreShare(const JobMembers&, const Calibration& record, std::optional<std::chrono::microseconds> spin);
  /// How waiters of this rank that are made now keep their core. While the record changes it may have a
  /// figure of each. Thread-safe.
  Patience patience() const {
    return {.spin = std::chrono::microseconds(spin_us_.load(std::memory_order_relaxed)),
            .polls = polls_.load(std::memory_order_relaxed),
            .crowded = crowded_};
  }
  /// The same by another record of this host: by rt::patience_by, but for what the user has chosen.
  Patience patience_by(const Calibration&) const;
  /// patience() is by this record from now on. Thread-safe.
  void reckon_with(const Calibration&);
  /// Whether every rank of this host can have a core.
  bool enough_here() const { return enough_here_; }
  /// Whether that holds for every host that one of these ranks is on: all ranks give the same answer.
  bool enough_for(const std::vector<int>& ranks) const;
  /// How many outermost caches of this host these of its ranks reach: those that they are bound to, and for
  /// each of the others one more, as far as the record has any. At least one.
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
