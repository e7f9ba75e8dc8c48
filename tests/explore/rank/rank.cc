// Ranks of explored programs. See rank.h.
#include "tests/explore/rank/rank.h"

namespace explore {

using namespace ouro;

Job* job = nullptr;

void label(Counter& c, const char* value, const char* sleepers, bool late_sleepers) {
  label(&c.value, sizeof c.value, value);
  label(&c.sleepers, sizeof c.sleepers, sleepers, late_sleepers);
}

void Job::make_links() {
  const auto n = static_cast<std::size_t>(ranks);
  auto* const counters = make<Counter>("counters", 2 * n * n + n);
  const std::size_t ring = slots * (sizeof(SlotHeader) + kSlotBytes);
  auto* const memory = make<std::byte>("slots", n * n * ring);
  for (std::size_t i = 0; i < n * n; ++i) {
    Counter &full = counters[2 * i], &freed = counters[2 * i + 1];
    label(full, "full", "full.sleepers", late_sleepers);
    label(freed, "freed", "freed.sleepers", late_sleepers);
    links.push_back({memory + i * ring, kSlotBytes, slots, &full, &freed});
  }
  for (std::size_t r = 0; r < n; ++r) {
    doorbells.push_back(&counters[2 * n * n + r]);
    label(*doorbells[r], "doorbell", "doorbell.sleepers", late_sleepers);
  }
}

void Job::make_staging() {
  for (int r = 0; r < ranks; ++r) {
    auto* const arrivals = make<Arrival>("record", StagingView::kArrivals);
    auto* const counters = make<Counter>("done", 2);
    label(counters[0], "done", "done.sleepers", late_sleepers);
    label(&counters[1].sleepers, sizeof counters[1].sleepers, "record.sleepers", late_sleepers);
    for (std::uint64_t k = 0; k < StagingView::kArrivals; ++k)
      label(&arrivals[k].word, sizeof arrivals[k].word, "record.word");
    staging.push_back({.slots = make<std::byte>("staging slots", StagingView::kSlots * kStagingBytes),
                       .slot_bytes = kStagingBytes,
                       .eager_bytes = 64,
                       .eager_slots = make<std::byte>("eager slots", StagingView::kArrivals * 64),
                       .ring = make<std::byte>("staging ring", kRingBytes),
                       .arrivals = arrivals,
                       .done = counters,
                       .sleepers = &counters[1].sleepers});
  }
}

void Job::make_registered() {
  for (int r = 0; r < ranks; ++r) registered.push_back(make<std::byte>("registered", kRegisteredBytes));
}

Status RankWaiter::check(Clock::duration) {
  if (std::atomic_ref(*const_cast<std::uint32_t*>(abort_)).load(std::memory_order_acquire) != 0)
    return {Reason::peer_dead, "the group has failed"};
  return {};
}

namespace {
/// A placeholder that is never read: below.cc answers all requests to the context.
rt::Context& no_context() {
  alignas(rt::Context) static std::byte nothing[sizeof(rt::Context)];
  return reinterpret_cast<rt::Context&>(nothing);
}
}  // namespace

Rank::Rank(const rt::Members& members)
    : waiter(job->aborts[static_cast<std::size_t>(members.rank())]),
      resources(no_context(), members, 1, waiter) {}

Status Rank::run(const rt::Plan& plan, std::uint64_t seq) {
  rt::InFlight f{.plan = &plan, .seq = seq, .history = history};
  f.add_to_history(plan.folded);
  history = f.history;
  return plan.host->run(resources, f);
}

rt::Plan plan_of(const Call& call, const rt::Members& members, const void* in, void* out) {
  const int rank = members.rank(), n = members.size();
  const CollectiveTraits traits = traits_of(call.collective);
  rt::Plan plan;
  plan.op.collective = call.collective;
  plan.op.in = {in, traits.in.elements(call.count, n), DType::u64};
  plan.op.out = {out, traits.out.elements(call.count, n), DType::u64};
  plan.op.root = call.root;
  plan.choice = {.algorithm = call.algorithm, .staging = call.staging, .try_zero_copy = call.try_zero_copy};
  plan.choice.ring = call.ring;
  plan.signature = rt::signature(plan.op, rank, n, false, 0).by(plan.choice.code());
  plan.folded = plan.signature.folded();
  const rt::SlotBytes bytes{Job::kSlotBytes, call.slot, call.eager, Job::kRingBytes, 0};
  plan.host = rt::make_execution_plan(plan, members, bytes, true);
  return plan;
}

const rt::Members& members_of(int rank, int ranks) {
  std::vector<int> world;
  for (int r = 0; r < ranks; ++r) world.push_back(r);
  const std::vector<int> hosts(world.size(), 0);
  return *new rt::Members(rank, std::move(world), hosts);
}

}  // namespace explore
