// Watching, measuring, proposing, taking. See adaptation.h.
#include "runtime/group/adaptation.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "runtime/calibration/choose.h"
#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"

namespace ouro::rt {
namespace {

constexpr std::uint64_t kStride = 64;          // operations from one revision point to the next
constexpr std::uint64_t kNext = 17;            // after one that is none; prime, as programs repeat themselves
constexpr std::size_t kFrom = 4 << 10;         // bytes; below, no choice depends on a record
constexpr int kMostRanks = 64;                 // the limit of rows_by_cost
constexpr std::size_t kPartners = 3;           // at most; spread over the ranks of the members
constexpr int kInVain = 16;                    // then other work occupies the processors
constexpr std::uint64_t kMostRevisions = 256;  // their tables are kept until the group ends
constexpr std::size_t kKnown = 64;             // a power of two
constexpr auto kToMeasure = std::chrono::microseconds(700), kToWake = std::chrono::microseconds(500);

bool depends_on_all(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::all_to_all;
}

/// The members of this host with which the first one measures.
std::vector<int> partners_of(const Members& members) {
  std::vector<int> all;
  for (const int index : {members.here() - 1, members.here() / 2, 1}) {
    const auto at = std::find(members.local().begin(), members.local().end(), index);
    const int r = static_cast<int>(at - members.local().begin());
    if (index > 0 && std::find(all.begin(), all.end(), r) == all.end() && all.size() < kPartners)
      all.push_back(r);
  }
  return all;
}

/// Compares the largest copies that the probes can measure, then the hand-offs.
bool slower(const PairCosts& a, const PairCosts& b) {
  constexpr std::size_t kBlock = 1;  // index in kCopySizes: as much as a probe page holds
  const auto best = [](const PairCosts& p) {
    std::uint32_t least = ~0u;
    for (const CopyCost& c : p.copies[kBlock])
      if (c.known()) least = std::min(least, c.both());
    return least;
  };
  return best(a) != best(b) ? best(a) > best(b) : a.handoff > b.handoff;
}

}  // namespace

Adaptation::Adaptation(Context& context, const Members& members, MemberRecords& records, Planner& planner,
                       Waiter& waiter)
    : context_(context),
      members_(members),
      records_(records),
      planner_(planner),
      waiter_(waiter),
      first_(members.keeper()),
      record_(context.calibration()) {
  const bool serves = members.here() > 1 && members.here() <= kMostRanks && context.cores().enough_here();
  const bool measured = context.spec().calibration.kind == CalibrationMode::Kind::measured && record_.known();
  watches_ = serves && measured;
  covers_host_ = members.here() == context.spec().local_size;
  due_ = watches_ ? kStride : ~std::uint64_t{0};
  if (members.rank() == first_) partners_ = partners_of(members);
  asking_ = partners_.size();
}

bool Adaptation::is_revision_point(const Plan& plan, std::uint64_t ticket) {
  if (!watches_ || ticket < due_) return false;
  const Operation& op = plan.op;
  const bool is_point = op.collective != Collective::mix && !op.uneven && op.segments.empty() &&
                        unit_bytes(op, members_.rank(), members_.size()) >= kFrom;
  due_ = ticket + (is_point ? kStride : kNext);
  return is_point;
}

Status Adaptation::after(const Plan& plan, std::uint64_t seq, std::chrono::nanoseconds took, Status outcome) {
  if (!outcome.ok()) {
    withdraw();
    return outcome;
  }
  try {
    pass_revision_point(seq);
  } catch (const std::exception&) {
    return no_memory();
  }
  const int rank = members_.rank();
  try {  // without memory nothing is noticed; no rank waits for this part
    if (rank == first_)
      lead(plan, took), invite(seq + 1);
    else
      context_.probes().answer(
          records_.page(first_),
          [&](std::uint64_t from, void* to, std::size_t bytes) { return read_first(from, to, bytes); },
          {records_.key(), seq, rank});
  } catch (const std::exception&) {
    asking_ = partners_.size();
  }
  return {};
}

/// Reads the memory of the first member, which may have unmapped it if this rank is late: the system then
/// refuses, but a rank of the same process would read it directly.
bool Adaptation::read_first(std::uint64_t from, void* to, std::size_t bytes) {
  const JobMembers& all = context_.members();
  const int rank = records_.world_rank(first_);
  return !all.is_thread(rank) && context_.host_memory().read(rank, from, to, bytes);
}

void Adaptation::pass_revision_point(std::uint64_t seq) {
  if (!register_)
    if (const GroupRecord* const first = records_.find(first_))
      register_ = find_revision(records_.page(first_), *first, records_.key());
  if (!register_) return;
  if (const auto record =
          rt::pass_revision_point(records_.mine(), *register_, records_.key(), revision_ + 1, seq))
    take(without_absurd(*record), seq);
}

void Adaptation::lead(const Plan& plan, std::chrono::nanoseconds took) {
  if (proposed_ > revision_) return;  // a record that is about to be replaced is no basis for a judgement
  if (asking_ < partners_.size())
    check_with(partners_[asking_]);
  else if (!proposal_)
    sample(plan, took);
  if (!proposal_) return;
  register_->kept.set(1);
  const std::uint64_t at =
      propose(*register_, revision_ + 1, last_, *proposal_, [this] { return points_of_all(); });
  if (at > 0) last_ = at, proposed_ = revision_ + 1, proposal_.reset();
}

RevisionPoints Adaptation::points_of_all() {
  RevisionPoints all;
  for (int r = 0; r < members_.size(); ++r) {
    if (!records_.is_here(r)) continue;
    if (const GroupRecord* const record = records_.find_ours(r))
      add(all, *record);
    else
      all.oldest = 0;
  }
  return all;
}

void Adaptation::leave(bool failed) {
  withdraw();
  if (members_.rank() != first_ || !register_) return;
  // A record that this member has not taken no member will take: its revision point has not been reached.
  bool all = true;
  for (int r = 0; r < members_.size() && all && !failed && revision_ > 0 && revision_ == proposed_; ++r) {
    if (!records_.is_here(r) || records_.has_left(r) || records_.is_dead(r)) continue;
    const GroupRecord* const record = records_.find_ours(r);
    all = record && record->revision_point.get() >= last_;
  }
  if (all) register_->kept.set(0);
}

void Adaptation::sample(const Plan& plan, std::chrono::nanoseconds took) {
  const auto ns = static_cast<double>(took.count());
  Ratios& ratios = ratios_[depends_on_all(plan.op.collective) ? 0 : 1];
  Known* const k = known(plan);
  const double model = k ? k->model : planner_.predicted_ns(record_, plan.op, plan.choice);
  Misses* heard = model > 0 && ratios.to_model.add(ns / model) ? &ratios.to_model : nullptr;
  if (k && k->samples < Misses::kWindow)
    k->least = std::max(1.0, k->samples++ == 0 ? ns : std::min(k->least, ns));
  else if (k && ratios.to_before.add(ns / k->least))
    heard = &ratios.to_before;
  if (!heard || revision_ >= kMostRevisions) return;
  heard_ = heard;
  if (!register_) register_ = claim_revision(records_.page(first_), records_.mine());
  if (!register_) return heard->nothing_found();  // too many groups adapt
  asking_ = 0, in_vain_ = 0, wake_ = 0, slowest_.reset();
}

/// What is known of a plan that is kept; nullptr for others.
Adaptation::Known* Adaptation::known(const Plan& plan) {
  if (plan.id == 0) return nullptr;
  known_.resize(kKnown);
  Known& k = known_[plan.id % kKnown];
  if (k.plan != plan.id) k = {plan.id, planner_.predicted_ns(record_, plan.op, plan.choice)};
  return &k;
}

void Adaptation::invite(std::uint64_t from) {
  if (asking_ >= partners_.size() || probe_) return;
  const int partner = partners_[asking_];
  invited_ = context_.probes().invite({records_.key(), from, partner}, records_.page(partner),
                                      [this](int r) { return context_.members().is_dead(r); });
}

void Adaptation::withdraw() {
  if (invited_) context_.probes().withdraw(records_.key());
  invited_ = false;
}

void Adaptation::check_with(int partner) {
  std::optional<PairCosts> found;
  if (probe_) {
    found = probe_(partner);
  } else if (invited_) {
    const auto copies = Clock::now() + kToMeasure, end = copies + kToWake;
    if (const auto probe = context_.probes().meet(records_.key(), end)) {
      found = measure(*probe, Clock::now, copies);
      if (found->handoff > 0) wake_ = std::max(wake_, measure_wake(*probe, Clock::now, end));
    }
    withdraw();
  }
  if (!found || found->handoff == 0) {
    if (++in_vain_ < kInVain) return;
    asking_ = partners_.size();
    return heard_->nothing_found();
  }
  found->distance = record_.farthest().distance;
  std::copy(std::begin(record_.farthest().cpus), std::end(record_.farthest().cpus), found->cpus);
  if (!slowest_ || slower(*found, *slowest_)) slowest_ = found;
  if (++asking_ == partners_.size()) conclude();
}

void Adaptation::conclude() {
  if (moved(record_, *slowest_)) {
    proposal_ = revised(record_, *slowest_);
    if (wake_ > 0) proposal_->wake = wake_;
    return;
  }
  OURO_INFO(TUNING, "group {}: operations miss what is expected, but the calibration holds",
            planner_.group());
  heard_->record_holds();
}

void Adaptation::take(const Calibration& record, std::uint64_t seq) {
  {
    std::lock_guard lock(mutex_);
    ++revision_, since_ = seq;
    if (record.known()) record_ = record;
  }
  if (!record.known()) return;
  known_.clear();
  for (Ratios& r : ratios_) r.to_model.record_changed(), r.to_before.record_changed();
  // Between hosts no algorithm follows a record, as each host has its own.
  if (members_.one_host()) planner_.reckon_with(context_, record_);
  // These settings are process-wide, and what a few ranks near each other find does not hold for all.
  if (covers_host_) {
    use_copy_kinds(record_);
    context_.cores().reckon_with(record_);
  }
  waiter_.have(context_.cores().patience_by(record_));
  OURO_INFO(TUNING,
            "group {}: the processors have moved; calibration {:016x} from operation {} on: a hand-off {} ns",
            planner_.group(), record_.digest(), seq + 1, record_.farthest().handoff);
}

Calibration Adaptation::record() const {
  std::lock_guard lock(mutex_);
  return record_;
}

std::string Adaptation::since() const {
  std::lock_guard lock(mutex_);
  if (revision_ == 0) return "";
  return fmt::format("by revision {} of the calibration, measured in mid-run and in use since operation {}",
                     revision_, since_ + 1);
}

}  // namespace ouro::rt
