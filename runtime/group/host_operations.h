// HostOperations: operations on the host. Used by Group and GpuOperations.
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

  /// Runs an operation in the turn of its ticket, and passes the turn on.
  Status execute(const Plan&, std::uint64_t ticket);
  /// Runs an operation in parts, on the buffers of the parts: as one operation of the group, with the
  /// signature of `whole` and the algorithm that was selected for it.
  Status execute(const Plan& whole, const NextPart&, std::uint64_t ticket);
  /// Runs `carry` in the turn of an operation; `carry` moves no data by this group.
  Status execute(const Plan&, const std::function<Status()>& carry, std::uint64_t ticket);
  /// Runs operations of a batch, as one if all ranks can. `can`: this rank can, and `ticket` is the first of
  /// the tickets for all of them.
  Status execute(const FusedOperation&, const Plan&, bool can, std::uint64_t ticket);

 private:
  friend struct TestAccess;
  Status carry_out(const Plan&);
  Status carry_out(const Plan& whole, const NextPart&, Status begun);
  /// Reads again the values that execute() compares with, after they may have changed.
  void look_again() { due_ = adaptation_.due(), table_ = planner_.table(); }
  /// Executes an operation that is a look (adaptation.h), or one that was planned by another selection table,
  /// or, with OURO_FAULT, any operation.
  Status execute_with_care(const Plan&, std::uint64_t ticket, const NextPart* = nullptr);
  Status end(Status outcome, std::uint64_t next);
  Status run_damaged();  ///< runs the operation in flight, for OURO_FAULT

  const Planner& planner_;
  Adaptation& adaptation_;
  Sequencer& sequencer_;
  FailureDetector& detector_;
  OperationWaiter& waiter_;
  HostResources& resources_;  // used by the thread whose turn it is
  std::uint64_t due_ = 0;     // execute_with_care() is due from this ticket on,
  std::uint32_t table_ = 0;   // and for a plan of another table
};

}  // namespace ouro::rt
