// HostOperations: operations on the host. Used by Group and GpuOperations.
#pragma once
#include "runtime/exec/host/host_resources.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/planner.h"
#include "runtime/group/turn.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/parts.h"

namespace ouro::rt {

/// Carries out the operations of a group on the host, each in its turn. All functions return the outcome.
class HostOperations {
 public:
  HostOperations(const Planner& planner, Sequencer& sequencer, FailureDetector& detector,
                 HostResources& resources)
      : planner_(planner), sequencer_(sequencer), detector_(detector), resources_(resources) {}

  /// An operation whose turn is taken now.
  Status execute(const Plan&);
  Status execute(const Plan&, Turn);
  /// An operation in parts, on the buffers of the parts: as one operation of the group, with the signature of
  /// `whole` and the algorithm that was selected for it.
  Status execute(const Plan& whole, const NextPart&, Turn);
  /// Operations of a batch, as one if all ranks can. `can`: this rank can, and the turn stands for the
  /// agreement and for all of them; else it stands for the agreement only.
  Status execute(const FusedOperation&, const Plan&, bool can, Turn);

 private:
  const Planner& planner_;
  Sequencer& sequencer_;
  FailureDetector& detector_;
  HostResources& resources_;  // used by the thread whose turn it is
};

}  // namespace ouro::rt
