// Operations on the host. See host_operations.h.
#include "runtime/group/host_operations.h"

#include <exception>
#include <utility>

#include "runtime/exec/host/by_reference.h"
#include "runtime/exec/host/damage.h"
#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {
namespace {

/// Carries out the plan in flight.
struct OnHost {
  static constexpr bool kInStream = false;
  Status move(InFlight& f) { return f.plan->host->run(resources, f); }
  Status damage(InFlight& f, const Status&) {
    bool postponed = false;
    Status outcome = run_damaged(resources, f, &postponed);
    if (postponed) resources.context.faults()->postpone_damage();
    return outcome;
  }
  HostResources& resources;
};

/// Carries out the parts of the plan in flight. Each part is one or more further rounds of the same
/// operation: links and staging buffers carry its number and its signature, so that a mismatch shows in the
/// first part.
struct InParts {
  static constexpr bool kInStream = false;
  Status move(InFlight& f) { return move_all(f, nullptr); }
  Status damage(InFlight& f, const Status& request) { return move_all(f, &request); }
  Status move_all(InFlight&, const Status* damage_first);
  HostResources& resources;
  const NextPart& next;
};

Status InParts::move_all(InFlight& f, const Status* damage_first) {
  const struct Restore {
    InFlight& in_flight;
    const Plan* whole;
    ~Restore() { in_flight.plan = whole; }
  } in{f, f.plan};
  OnHost on_host{resources};
  Plan part = *in.whole;
  part.id = 0;
  const Operation* op = nullptr;
  std::size_t planned = 0;  // elements for which part.host was made
  for (;; damage_first = nullptr) {
    OURO_TRY(next(&op));
    if (!op) return {};
    const std::size_t count = unit_count(*op, resources.members.rank(), resources.members.size());
    part.op = *op;
    part.op.numerics = in.whole->op.numerics;
    if (count != planned || op->uneven)  // uneven blocks end in different parts
      part.host = make_execution_plan(part, resources.members, resources.wiring.slot_bytes(),
                                      resources.single_rounds);
    planned = count;
    f.plan = &part;
    OURO_TRY(damage_first ? on_host.damage(f, *damage_first) : on_host.move(f));
    f.plan = in.whole;
  }
}

/// Carries out operations of a batch as one, if all ranks can.
struct AsOne : OnHost {
  Status move(InFlight& f) { return run_as_one(resources, f, &as_one); }
  bool as_one;  ///< this rank can; after move(): all can
};

}  // namespace

Status HostOperations::execute(const Plan& plan) {
  return Turn(sequencer_, sequencer_.take_ticket()).carry(plan, OnHost{resources_});
}

Status HostOperations::execute(const Plan& plan, Turn turn) { return turn.carry(plan, OnHost{resources_}); }

Status HostOperations::execute(const Plan& whole, const NextPart& next, Turn turn) {
  return turn.carry(whole, InParts{resources_, next});
}

Status HostOperations::execute(const FusedOperation& fused, const Plan& plan, bool can, Turn turn) {
  AsOne carrier{{resources_}, can};
  Status outcome = turn.enter_and_move(plan, carrier);
  // Without `can` the caller submits the operations next, one by one.
  if (!can || carrier.as_one || !outcome.ok()) return turn.leave(std::move(outcome));
  (void)turn.split_first().leave({});
  for (const Operation& op : fused.parts()) {
    Plan part;
    Turn one = turn.split_first();
    const Status planned = planner_.make(op, &part);
    // The operations could be planned as one. If one alone cannot, the ranks no longer match.
    Status ended = planned.ok() ? execute(part, std::move(one)) : one.forfeit(planned);
    if (outcome.ok()) outcome = std::move(ended);
  }
  return outcome;
}

}  // namespace ouro::rt
