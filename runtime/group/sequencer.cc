// The order of a group's operations. See sequencer.h.
#include "runtime/group/sequencer.h"

#include <exception>
#include <thread>
#include <utility>

#include "runtime/core/no_memory.h"
#include "runtime/core/thread.h"

namespace ouro::rt {

void Sequencer::await(std::uint64_t ticket) {
  const LentCore lent;
  wait_patiently(turn_, ticket);
}

void Sequencer::await_rest() {
  wait_patiently(turn_, tickets_.load(std::memory_order_acquire));
  while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
}

Status Sequencer::enter_with_care(const Plan& made, std::uint64_t ticket) {
  const Plan* plan = &made;
  // The selection table is that of operations on the host.
  if (!on_device(made.op) && planner_.outdated(made)) {
    const Operation op = made.op;  // `made` may be the kept plan, which is replaced
    if (const Status planned = planner_.make(op, &again_); !planned.ok()) return detector_.fail(planned);
    plan = &again_;
  }
  if (!detector_.ok()) return detector_.status();
  waiter_.begin(*plan, ticket + 1);
  Status outcome = watchers_.began(waiter_.in_flight());
  enter(record_, ticket + 1, plan->signature);
  return outcome;
}

Status Sequencer::leave_with_care(std::uint64_t next, std::uint64_t place, bool in_stream, Status outcome) {
  outcome = watchers_.ended(waiter_.in_flight(), std::move(outcome));
  refresh();
  if (!outcome.ok())
    outcome = detector_.stick(std::move(outcome), waiter_.in_flight());
  else if (!in_stream)
    complete(next);
  try {
    wiring_.settle();
  } catch (const std::exception&) {
    outcome = detector_.out_of_memory();
  }
  if (place != kNoPlace) entries_.leave(place);
  pass(next);  // in any case: others wait for their turns
  return outcome;
}

void Sequencer::abandon(std::uint64_t ticket, std::uint64_t many, std::uint64_t place, bool entered) {
  if (entered) return (void)leave_with_care(ticket + many, place, false, no_memory());
  if (place != kNoPlace) (void)detector_.out_of_memory();  // no later place will be reached
  skip(ticket, many);
}

Status Sequencer::forfeit(std::uint64_t ticket, std::uint64_t many, const Status& why) {
  Status outcome = detector_.fail(why);
  skip(ticket, many);
  return outcome;
}

void Sequencer::skip_aside(std::uint64_t ticket) {
  const auto skips = [this, ticket] {
    const Inside inside(*this);
    skip(ticket, 1);
  };
  try {
    Thread("ouro-aside", skips).detach();
  } catch (const std::exception&) {
    skips();
  }
}

/// Turns pass in the order of operations, so all operations before the oldest one in flight have ended.
void Sequencer::complete_among(GpuPending& pending, std::uint64_t next) {
  pending.settle(next, [this](std::uint64_t all) {
    if (all > record_.completed.get()) record_.completed.set(all);
  });
}

}  // namespace ouro::rt
