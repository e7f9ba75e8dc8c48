// Watching, measuring, proposing, taking. See adaptation.h.
#include "runtime/group/adaptation.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "runtime/calibration/choose.h"
#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"
#include "runtime/health/revision.h"

namespace ouro::rt {
namespace {

constexpr std::uint64_t kStride = 64;   // operations from meeting to meeting
constexpr std::uint64_t kNext = 17;     // after one that is no meeting; prime, as programs repeat themselves
constexpr std::size_t kFrom = 4 << 10;  // bytes: below, nothing is chosen by a record
constexpr int kMostRanks = 64;          // as rows_by_cost has it
constexpr std::size_t kPartners = 3;    // of many members, spread over their ranks
constexpr int kInVain = 16;             // then other work is on the processors
constexpr std::uint64_t kMostRevisions = 256;  // their tables are kept as long as the group
constexpr std::size_t kKnown = 64;             // a power of two
constexpr auto kToMeasure = std::chrono::microseconds(700);

bool depends_on_all(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::all_to_all;
}

std::vector<int> partners_of(int size) {
  std::vector<int> all;
  for (const int r : {size - 1, size / 2, 1})
    if (r > 0 && std::find(all.begin(), all.end(), r) == all.end() && all.size() < kPartners)
      all.push_back(r);
  return all;
}

/// By the largest copy that both have.
bool slower(const PairCosts& a, const PairCosts& b) {
  constexpr std::size_t kBlock = 1;  // of kCopySizes: what a page has room for
  const auto best = [](const PairCosts& p) {
    std::uint32_t least = ~0u;
    for (const CopyCost& c : p.copies[kBlock])
      if (c.known()) least = std::min(least, c.both());
    return least;
  };
  return best(a) != best(b) ? best(a) > best(b) : a.handoff > b.handoff;
}

}  // namespace

Adaptation::Adaptation(Context& context, const Members& members, MemberRecords& records, Planner& planner)
    : context_(context),
      members_(members),
      records_(records),
      planner_(planner),
      record_(context.calibration()) {
  const bool serves = members.one_host() && members.size() > 1 && members.size() <= kMostRanks &&
                      context.cores().enough_for(members.world_ranks());
  const bool measured = context.spec().calibration.kind == CalibrationMode::Kind::measured && record_.known();
  watches_ = serves && measured, next_ = kStride;
  covers_host_ = members.size() == context.spec().local_size;
  // Whoever harms itself does so in any operation, so all of them are carried out with care.
  due_ = context.faults() ? 0 : watches_ ? kStride : ~std::uint64_t{0};
  if (members.rank() == 0) partners_ = partners_of(members.size());
  asking_ = partners_.size();
}

bool Adaptation::meets(const Plan& plan, std::uint64_t ticket) {
  if (!watches_ || ticket < next_) return false;
  const Operation& op = plan.op;
  const bool meets = depends_on_all(op.collective) && !op.uneven && op.segments.empty() &&
                     unit_bytes(op, members_.rank(), members_.size()) >= kFrom;
  next_ = ticket + (meets ? kStride : kNext);
  if (due_ > 0) due_ = next_;
  return meets;
}

void Adaptation::before(std::uint64_t seq) {
  if (members_.rank() != 0) return;
  if (proposal_) {
    RevisionRegister* const to = claim_revision(records_.page(0), records_.mine());
    if (to)
      propose(*to, revision_ + 1, seq, *proposal_);
    else
      misses_.nothing_found();  // too many groups adapt
    proposal_.reset();
  } else if (asking_ < partners_.size() && !probe_) {
    const int partner = partners_[asking_];
    invited_ = context_.probes().invite({records_.key(), seq, partner}, records_.page(partner),
                                        [this](int r) { return context_.members().is_dead(r); });
  }
}

Status Adaptation::after(const Plan& plan, std::uint64_t seq, std::chrono::nanoseconds took, Status outcome) {
  const bool met = outcome.ok();
  try {  // without memory for it nothing is noticed, and nobody waits for that
    if (met) look(plan, seq, took);
  } catch (const std::exception&) {
    asking_ = partners_.size();
  }
  if (invited_) context_.probes().withdraw();
  invited_ = false;
  if (!met) return outcome;
  if (!first_) first_ = records_.find(0);
  const std::uint32_t place = first_ ? first_->revised.get() : 0;
  if (place == 0 || place > kRevising) return {};
  const auto record = proposed(records_.page(0).revisions[place - 1], records_.key(), revision_ + 1, seq);
  if (!record) return {};
  try {
    return take(without_absurd(*record), seq);
  } catch (const std::exception&) {
    return no_memory();
  }
}

void Adaptation::look(const Plan& plan, std::uint64_t seq, std::chrono::nanoseconds took) {
  if (members_.rank() != 0)
    context_.probes().answer(records_.page(0), records_.peer(0).pid, {records_.key(), seq, members_.rank()});
  else if (asking_ < partners_.size())
    check_with(partners_[asking_]);
  else
    sample(plan, took);
}

void Adaptation::sample(const Plan& plan, std::chrono::nanoseconds took) {
  const double ns = predicted(plan);
  if (ns <= 0 || !misses_.add(static_cast<double>(took.count()) / ns)) return;
  if (revision_ < kMostRevisions) asking_ = 0, in_vain_ = 0, slowest_.reset();
}

double Adaptation::predicted(const Plan& plan) {
  known_.resize(kKnown);
  Known& k = known_[plan.id % kKnown];
  if (plan.id == 0 || k.plan != plan.id) k = {plan.id, planner_.predicted_ns(record_, plan.op, plan.choice)};
  return k.ns;
}

void Adaptation::check_with(int partner) {
  std::optional<PairCosts> found;
  if (probe_) {
    found = probe_(partner);
  } else if (invited_) {
    const auto end = Clock::now() + kToMeasure;
    if (const auto probe = context_.probes().meet(end)) found = measure(*probe, Clock::now, end);
  }
  if (!found || found->handoff == 0) {
    if (++in_vain_ < kInVain) return;
    asking_ = partners_.size();
    return misses_.nothing_found();
  }
  found->distance = record_.farthest().distance;
  std::copy(std::begin(record_.farthest().cpus), std::end(record_.farthest().cpus), found->cpus);
  if (!slowest_ || slower(*found, *slowest_)) slowest_ = found;
  if (++asking_ == partners_.size()) conclude();
}

void Adaptation::conclude() {
  if (moved(record_, *slowest_)) {
    proposal_ = revised(record_, *slowest_);
    return;
  }
  OURO_INFO(TUNING, "group {}: operations miss their prediction, but the calibration holds",
            planner_.group());
  misses_.record_holds();
}

Status Adaptation::take(const Calibration& record, std::uint64_t seq) {
  {
    std::lock_guard lock(mutex_);
    ++revision_, since_ = seq;
    if (record.known()) record_ = record;
  }
  if (!record.known()) return {};
  known_.clear();
  misses_.record_changed();
  planner_.reckon_with(context_, record_);
  // They are the whole process's: what some near ranks find is not so for all.
  if (covers_host_) kernels::set_copy_kinds(copy_kinds_by(record_));
  OURO_INFO(TUNING,
            "group {}: the processors have moved; calibration {:016x} from operation {} on: a hand-off {} ns",
            planner_.group(), record_.digest(), seq + 1, record_.farthest().handoff);
  return {};
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
