// Operations on the host. See host_operations.h.
#include "runtime/group/host_operations.h"

#include <exception>
#include <utility>

#include "runtime/exec/host/by_reference.h"
#include "runtime/exec/host/damage.h"
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// `next`: the ticket whose turn it is then.
Status HostOperations::end(Status outcome, std::uint64_t next) {
  if (!outcome.ok() && Faults::is_damage(outcome)) outcome = run_damaged();
  if (outcome.ok())
    sequencer_.complete(next);
  else
    outcome = detector_.stick(std::move(outcome), waiter_.in_flight());
  try {
    resources_.wiring.settle();
  } catch (const std::exception&) {
    outcome = detector_.out_of_memory();
  }
  sequencer_.pass(next);  // whatever has happened: others wait for their turns
  return outcome;
}

Status HostOperations::run_damaged() try {
  bool postponed = false;
  const Status outcome = rt::run_damaged(resources_, waiter_.in_flight(), &postponed);
  if (postponed) resources_.context.faults()->postpone_damage();
  return outcome;
} catch (const std::exception&) {
  return no_memory();
}

Status HostOperations::execute(const Plan& plan, std::uint64_t ticket) {
  Status outcome = sequencer_.begin(plan, ticket);
  if (outcome.ok() && !plan.idle) {
    try {
      outcome = plan.host->run(resources_, waiter_.in_flight());
    } catch (const std::exception&) {
      outcome = no_memory();
    }
  }
  return end(std::move(outcome), ticket + 1);
}

Status HostOperations::execute(const FusedOperation& fused, const Plan& plan, bool can,
                               std::uint64_t ticket) {
  const std::uint64_t many = fused.parts().size();
  bool as_one = can;
  Status outcome = sequencer_.begin(plan, ticket);
  if (outcome.ok() && !plan.idle) {
    try {
      outcome = run_as_one(resources_, waiter_.in_flight(), &as_one);
    } catch (const std::exception&) {
      outcome = no_memory();
    }
  }
  if (!can) return end(outcome, ticket + 1);  // the others follow on their own
  if (as_one || !outcome.ok()) return end(outcome, ticket + 1 + many);
  (void)end({}, ++ticket);
  for (std::uint64_t k = 0; k < many; ++k, ++ticket) {
    Plan part;
    Status planned = planner_.make(fused.parts()[k], &part);
    // As one it has been planned, too; where that differs, the ranks have come apart.
    Status ended = planned.ok() ? execute(part, ticket) : end(detector_.fail(planned), ticket + 1);
    if (outcome.ok()) outcome = ended;
  }
  return outcome;
}

}  // namespace ouro::rt
