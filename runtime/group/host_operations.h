// Operations on the host. Used by Group and GpuOperations.
#pragma once
#include <cstdint>
#include <functional>

#include "runtime/exec/host/host_resources.h"
#include "runtime/group/adaptation.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/planner.h"
#include "runtime/group/sequencer.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/parts.h"

namespace ouro::rt {

/// Runs the operations of a group on the host, each in its turn.
class HostOperations {
 public:
  HostOperations(const Planner& planner, Adaptation& adaptation, Sequencer& sequencer,
                 FailureDetector& detector, OperationWaiter& waiter, HostResources& resources)
      : planner_(planner),
        adaptation_(adaptation),
        sequencer_(sequencer),
        detector_(detector),
        waiter_(waiter),
        resources_(resources) {
    look_again();
  }

  Status execute(const Plan&, std::uint64_t ticket);
  /// In parts, whose buffers are those to use: as one operation of the group, with the signature of the
  /// whole, by the flow that was selected for the whole.
  Status execute(const Plan& whole, const NextPart&, std::uint64_t ticket);
  /// In its turn as any other, but carried out by `carry`, which moves nothing by this group.
  Status execute(const Plan&, const std::function<Status()>& carry, std::uint64_t ticket);
  /// Operations of a batch, as one if all ranks can. can: this one can, and `ticket` is the first of those of
  /// them all.
  Status execute(const FusedOperation&, const Plan&, bool can, std::uint64_t ticket);

 private:
  friend struct TestAccess;
  Status carry_out(const Plan&);
  Status carry_out(const Plan& whole, const NextPart&, Status begun);
  /// What execute() compares with, again, after it may have changed.
  void look_again() { due_ = adaptation_.due(), table_ = planner_.table(); }
  /// An operation at which the record is looked at, or one that was planned by another, or all of them where
  /// OURO_FAULT has something to say.
  Status execute_with_care(const Plan&, std::uint64_t ticket, const NextPart* = nullptr);
  Status end(Status outcome, std::uint64_t next);
  Status run_damaged();  ///< the operation in flight, for OURO_FAULT

  const Planner& planner_;
  Adaptation& adaptation_;
  Sequencer& sequencer_;
  FailureDetector& detector_;
  OperationWaiter& waiter_;
  HostResources& resources_;  // whose turn it is uses them
  std::uint64_t due_ = 0;     // care is due from this ticket on,
  std::uint32_t table_ = 0;   // and where a plan is of another table
};

}  // namespace ouro::rt
