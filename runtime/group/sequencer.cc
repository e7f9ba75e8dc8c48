// The order of a group's operations. See sequencer.h.
#include "runtime/group/sequencer.h"

namespace ouro::rt {

void Sequencer::await(std::uint64_t ticket) {
  const LentCore lent;
  wait_patiently(turn_, ticket);
}

void Sequencer::skip_aside(std::uint64_t ticket) {
  const auto skips = [this, ticket] {
    (void)inside([&] {
      skip(ticket);
      return Status();
    });
  };
  try {
    Thread("ouro-aside", skips).detach();
  } catch (const std::exception&) {
    skips();
  }
}

/// Turns pass in the order of operations, so all operations before the oldest one in flight have ended.
void Sequencer::complete_beside(GpuPending& pending, std::uint64_t next) {
  pending.settle(next, [this](std::uint64_t all) {
    if (all > record_.completed.get()) record_.completed.set(all);
  });
}

Status Sequencer::begin_with_care(const Plan& plan, std::uint64_t ticket) {
  if (!detector_.ok()) return detector_.status();
  waiter_.begin(plan, ticket + 1);
  Status s = parts_ ? faults_->strike_part() : faults_->strike(name(plan.op.collective));
  enter(record_, ticket + 1, plan.signature);
  return s;
}

}  // namespace ouro::rt
