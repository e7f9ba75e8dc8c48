// OperationWatchers: everything that observes the operations of a group. Used by the sequencer.
#pragma once
#include <cstdint>
#include <utility>

#include "runtime/context/faults.h"
#include "runtime/group/adaptation.h"
#include "runtime/plan/in_flight.h"

namespace ouro::rt {

/// Calls all watchers of a group at two points of each operation that is due: when it has its turn, before it
/// is entered on the control page, and when it has ended or has been put into a stream. An operation that is
/// not due costs one comparison. Called by the thread whose turn it is.
class OperationWatchers {
 public:
  /// `faults`: those that OURO_FAULT injects into this rank, or nullptr. `parts`: operations of the group are
  /// parts of those of another group, which has counted them.
  OperationWatchers(Adaptation& adaptation, Faults* faults, bool parts)
      : adaptation_(adaptation), faults_(faults), parts_(parts) {}

  /// The first ticket whose operation has to be shown to the watchers. Faults may strike any operation.
  std::uint64_t due() const { return faults_ ? 0 : adaptation_.due(); }
  /// Errors: that of an injected fault, which may be a request to damage data (Faults::is_damage).
  Status began(const InFlight&);
  /// Returns the outcome of the operation. Errors: resource, if a watcher whose work the members of the group
  /// rely on has no memory.
  Status ended(const InFlight&, Status outcome);

 private:
  Adaptation& adaptation_;
  Faults* const faults_;
  const bool parts_;
  bool timed_ = false;  // the operation in flight, for the adaptation
  Clock::time_point began_ = {};
};

inline Status OperationWatchers::began(const InFlight& f) {
  const Plan& plan = *f.plan;
  // An operation that moves nothing may be on device memory on some ranks, so it is a revision point on none.
  timed_ = !plan.idle && !on_device(plan.op) && adaptation_.is_revision_point(plan, f.seq - 1);
  if (timed_) began_ = Clock::now();
  if (!faults_) return {};
  return parts_ ? faults_->strike_part() : faults_->strike(name(plan.op.collective));
}

inline Status OperationWatchers::ended(const InFlight& f, Status outcome) {
  if (!std::exchange(timed_, false)) return outcome;
  return adaptation_.after(*f.plan, f.seq, Clock::now() - began_, std::move(outcome));
}

}  // namespace ouro::rt
