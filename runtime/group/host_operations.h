// Operations on the host. Used by Group and GpuOperations.
#pragma once
#include <cstdint>

#include "runtime/exec/host/host_resources.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/planner.h"
#include "runtime/group/sequencer.h"
#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Runs the operations of a group on the host, each in its turn.
class HostOperations {
 public:
  HostOperations(const Planner& planner, Sequencer& sequencer, FailureDetector& detector,
                 OperationWaiter& waiter, HostResources& resources)
      : planner_(planner),
        sequencer_(sequencer),
        detector_(detector),
        waiter_(waiter),
        resources_(resources) {}

  Status execute(const Plan&, std::uint64_t ticket);
  /// Operations of a batch, as one if all ranks can. can: this one can, and `ticket` is the first of those of
  /// them all.
  Status execute(const FusedOperation&, const Plan&, bool can, std::uint64_t ticket);

 private:
  Status end(Status outcome, std::uint64_t next);
  Status run_damaged();  ///< the operation in flight, for OURO_FAULT

  const Planner& planner_;
  Sequencer& sequencer_;
  FailureDetector& detector_;
  OperationWaiter& waiter_;
  HostResources& resources_;  // whose turn it is uses them
};

}  // namespace ouro::rt
