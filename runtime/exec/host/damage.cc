// Injects damage. See damage.h.
#include "runtime/exec/host/damage.h"

#include "runtime/exec/host/by_reference.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

constexpr unsigned kBit = 1u << 7;  // of signatures

void damage_arrival_record(HostResources& h) {
  StagingRounds& rounds = h.rounds;
  rounds.mine().publish(rounds.current(), StagingView::kSecondBarrier, rounds.tag() ^ kBit);
}

/// Writes one damaged slot to each rank of this host whose link has room.
void damage_slots(HostResources& h, const InFlight& f) {
  LinkEnds& ends = h.wiring.links();
  for (std::size_t r = 0; r < ends.out.size(); ++r) {
    transport::LinkEnd& to = ends.out[r];
    if (static_cast<int>(r) == h.members.rank() || to.remote ||
        to.next - load(*to.view.freed) >= to.view.slot_count)
      continue;
    to.view.header(to.next) = {f.seq, f.plan->folded ^ kBit, 0, 0, 0};
    publish(*to.view.full, ++to.next);
  }
}

}  // namespace

Status run_damaged(HostResources& h, InFlight& f, bool* postponed) {
  const Plan& plan = *f.plan;
  const bool meets = plan.op.collective == Collective::barrier;
  const bool sends = h.members.size() > 1 && (meets || posts_input(plan.op, h.members.rank()));
  if (*postponed = plan.idle || !sends; *postponed) return plan.idle ? Status() : plan.host->run(h, f);
  const ExecutionPlan& how = *plan.host;
  Faults& faults = *h.context.faults();
  if (!h.members.one_host() && !faults.damages_within_host()) {
    transport::Exchange& exchange = h.context.network()->fabric().exchange();
    exchange.damage_next();
    const Status s = how.run(h, f);
    if (s.ok() && exchange.spare_next())
      faults.postpone_damage(true);  // other ranks of this host send for it
    return s;
  }
  if (how.flow.stages || how.zero_copy.run || how.pull.run) {
    OURO_TRY(h.rounds.begin(f, how.flow.staging));
    damage_arrival_record(h);
  } else {
    OURO_TRY(h.wiring.need_links());
    damage_slots(h, f);
  }
  Counter never{};
  return h.waiter.until(never, 1);
}

}  // namespace ouro::rt
