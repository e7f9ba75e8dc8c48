// Operations on the host. See host_operations.h.
#include "runtime/group/host_operations.h"

#include <exception>
#include <utility>

#include "runtime/exec/host/by_reference.h"
#include "runtime/exec/host/damage.h"
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// Ends the operation in flight with this outcome and passes the turn to ticket `next`.
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
  sequencer_.pass(next);  // in any case: others wait for their turns
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

inline Status HostOperations::carry_out(const Plan& plan) {
  try {
    return plan.host->run(resources_, waiter_.in_flight());
  } catch (const std::exception&) {
    return no_memory();
  }
}

/// Each part is one or more further rounds of the same operation: links and staging buffers carry its number
/// and its signature, so that a mismatch shows in the first part.
Status HostOperations::carry_out(const Plan& whole, const NextPart& next, Status begun) {
  Plan part = whole;
  part.id = 0;
  const Operation* op = nullptr;
  std::size_t planned = 0;  // elements for which part.host was made
  for (bool first = true;; first = false) {
    OURO_TRY(next(&op));
    if (!op) return {};
    const std::size_t count = unit_count(*op, resources_.members.rank(), resources_.members.size());
    part.op = *op;
    part.op.numerics = whole.op.numerics;
    if (count != planned || op->uneven)  // uneven blocks end in different parts
      part.host = make_execution_plan(part, resources_.members, resources_.wiring.slot_bytes(),
                                      resources_.single_rounds);
    planned = count;
    waiter_.in_flight().plan = &part;
    const Status outcome = first && Faults::is_damage(begun) ? run_damaged() : carry_out(part);
    waiter_.in_flight().plan = &whole;
    OURO_TRY(outcome);
  }
}

Status HostOperations::execute(const Plan& whole, const NextPart& next, std::uint64_t ticket) {
  sequencer_.await_turn(ticket);
  return execute_with_care(whole, ticket, &next);
}

Status HostOperations::execute(const Plan& plan, const std::function<Status()>& carry, std::uint64_t ticket) {
  sequencer_.await_turn(ticket);
  Status outcome = sequencer_.begin(plan, ticket);
  if (Faults::is_damage(outcome)) {  // there is nothing here to damage
    resources_.context.faults()->postpone_damage();
    outcome = {};
  }
  if (outcome.ok()) {
    try {
      outcome = carry();
    } catch (const std::exception&) {
      outcome = no_memory();
    }
  }
  return end(std::move(outcome), ticket + 1);
}

Status HostOperations::execute(const Plan& plan, std::uint64_t ticket) {
  sequencer_.await_turn(ticket);
  if (ticket >= due_ || plan.table != table_) [[unlikely]]
    return execute_with_care(plan, ticket);
  Status outcome = sequencer_.begin_unharmed(plan, ticket);
  if (outcome.ok() && !plan.idle) outcome = carry_out(plan);
  if (!outcome.ok() || resources_.wiring.settles()) [[unlikely]]
    return end(std::move(outcome), ticket + 1);
  sequencer_.complete(ticket + 1);  // all that is left of end()
  sequencer_.pass(ticket + 1);
  return outcome;
}

Status HostOperations::execute_with_care(const Plan& made, std::uint64_t ticket, const NextPart* parts) {
  Plan again;
  const Plan* plan = &made;
  if (planner_.outdated(made)) {
    const Operation op = made.op;  // `made` may be the kept plan, which `again` replaces
    if (const Status planned = planner_.make(op, &again); !planned.ok())
      return end(detector_.fail(planned), ticket + 1);
    plan = &again;
  }
  // An operation that moves nothing may be on device memory on some ranks, so it is a look on none.
  const bool looks = !plan->idle && adaptation_.looks(*plan, ticket);
  const auto begin = looks ? Clock::now() : Clock::time_point{};
  Status outcome = sequencer_.begin(*plan, ticket);
  if (parts && (outcome.ok() || Faults::is_damage(outcome))) {
    try {
      outcome = carry_out(*plan, *parts, std::move(outcome));
    } catch (const std::exception&) {
      waiter_.in_flight().plan = plan;
      outcome = no_memory();
    }
  } else if (outcome.ok() && !plan->idle) {
    outcome = carry_out(*plan);
  }
  if (looks) outcome = adaptation_.after(*plan, ticket + 1, Clock::now() - begin, std::move(outcome));
  look_again();
  return end(std::move(outcome), ticket + 1);
}

Status HostOperations::execute(const FusedOperation& fused, const Plan& plan, bool can,
                               std::uint64_t ticket) {
  const std::uint64_t many = fused.parts().size();
  sequencer_.await_turn(ticket);
  if (planner_.outdated(plan)) {
    Plan again;
    const Status planned = planner_.make(fused.get(), &again);
    if (planned.ok()) return execute(fused, again, can, ticket);
    return end(detector_.fail(planned), ticket + (can ? 1 + many : 1));
  }
  bool as_one = can;
  Status outcome = sequencer_.begin(plan, ticket);
  if (outcome.ok() && !plan.idle) {
    try {
      outcome = run_as_one(resources_, waiter_.in_flight(), &as_one);
    } catch (const std::exception&) {
      outcome = no_memory();
    }
  }
  if (!can) return end(outcome, ticket + 1);  // the operations follow one by one, with tickets of their own
  if (as_one || !outcome.ok()) return end(outcome, ticket + 1 + many);
  (void)end({}, ++ticket);
  for (std::uint64_t k = 0; k < many; ++k, ++ticket) {
    Plan part;
    Status planned = planner_.make(fused.parts()[k], &part);
    // The operations could be planned as one. If one alone cannot, the ranks no longer match.
    Status ended = planned.ok() ? execute(part, ticket) : end(detector_.fail(planned), ticket + 1);
    if (outcome.ok()) outcome = ended;
  }
  return outcome;
}

}  // namespace ouro::rt
