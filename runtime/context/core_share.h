// Cores and ranks. Used by Context, groups and executors.
#pragma once
#include <chrono>
#include <optional>
#include <vector>

#include "runtime/context/job_members.h"

namespace ouro::rt {

/// Whether the ranks of each host can have cores of their own, and how their waiters behave accordingly.
/// Judged by what all of them wrote on their pages before they joined, so that all ranks of the job come to
/// the same answer.
class CoreShare {
 public:
  /// `spin`: chosen by the user.
  CoreShare(const JobMembers&, std::optional<std::chrono::microseconds> spin);
  /// How long waiters of this rank spin before they yield: 50 us where every rank of its host can have a
  /// core.
  std::chrono::microseconds spin() const { return spin_; }
  /// Whether this host lacks cores for a caller and a stream of each of its ranks (Waiter).
  bool crowded() const { return crowded_; }
  /// Whether every rank of this host can have a core.
  bool enough_here() const { return enough_here_; }
  /// Whether that holds for every host that one of these ranks is on: all ranks give the same answer.
  bool enough_for(const std::vector<int>& ranks) const;

 private:
  const JobMembers& members_;
  std::vector<bool> enough_;  // by host
  bool enough_here_ = false, crowded_ = false;
  std::chrono::microseconds spin_{0};
};

}  // namespace ouro::rt
