// Going on after a failure: who is left agrees on who is left. On one host over pages that all see as they
// are, between hosts by Agreement. Part of Group.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "runtime/core/deadline.h"
#include "runtime/group/group.h"
#include "runtime/health/agreement.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kLookAgain = 500us;

Shrinking shrinking_of(const GroupRecord& r) { return static_cast<Shrinking>(r.shrinking.get()); }

Verdict verdict_of(const GroupRecord& r) {
  Verdict v;
  for (std::size_t i = 0; i < std::size(v.dead.words); ++i) v.dead.words[i] = r.dead[i].get();
  v.resume = r.resume.get();
  return v;
}

void announce(const Verdict& v, GroupRecord* mine) {
  for (std::size_t i = 0; i < std::size(v.dead.words); ++i) mine->dead[i].set(v.dead.words[i]);
  mine->resume.set(v.resume);
  mine->decided.set(1);  // pairs with the acquire where `decided` is read
}

Status gone_on() { return {Reason::fenced, "the others have gone on without this rank"}; }

}  // namespace

Result<std::shared_ptr<Group>> Group::shrink(ShrinkOutcome* outcome) {
  OURO_TRY(context_->usable());
  if (closed_.load(std::memory_order_acquire))
    return Status(Reason::revoked, fmt::format("group '{}' is closed", spec_.name));
  OURO_TRY(check_wait("shrink()"));
  if (status().ok())
    (void)fail({.reason = Reason::revoked,
                .text = fmt::format("rank {} called shrink()", rank_),
                .rank = rank_,
                .detector = "shrink()"},
               nullptr, true);
  await_rest();
  // The network's thread may say `fenced` at any time, which stays.
  auto no = static_cast<std::uint32_t>(Shrinking::no);
  std::atomic_ref(record_.shrinking.value)
      .compare_exchange_strong(no, static_cast<std::uint32_t>(Shrinking::called));
  context_->tell();
  auto verdict = one_host() ? agree_here() : agree_between_hosts();
  if (!verdict.ok()) return verdict.status();
  std::vector<int> members;
  ShrinkOutcome result{{}, verdict->resume};
  for (int r = 0; r < size(); ++r) (verdict->dead.has(r) ? result.dead : members).push_back(r);
  if (verdict->dead.has(rank_)) return gone_on();
  // Those that only seemed dead are told when they come back.
  for (const int r : result.dead)
    if (context_->network()) context_->network()->fence(world_rank(r));
  if (outcome) *outcome = std::move(result);
  return derive(members, spec_.name, 0, spec_.generation + 1, spec_.deadline, spec_.numerics);
}

Status Group::shrink_timed_out(const std::vector<int>& waiting, const char* for_what) const {
  return Status(Failure{.reason = Reason::deadline,
                        .text = fmt::format("ranks {{{}}} have not {}", fmt::join(waiting, ","), for_what),
                        .group = spec_.name,
                        .generation = spec_.generation,
                        .op = "shrink"});
}

/// Pages outlive their writers: the lowest live rank decides once all live ranks have come to rest here, and
/// writes the dead set with one release store. Who takes over after its death first adopts a decision that it
/// may have left behind. All deaths on a node are proven (pidfd), so no quorum is asked for.
Result<Verdict> Group::agree_here() {
  const auto end = deadline_after(spec_.deadline);
  std::vector<int> waiting;
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    if (shrinking_of(record_) == Shrinking::fenced) return gone_on();
    waiting.clear();
    int lowest = -1;
    // First who is gone, then who has decided: a decision that its author left behind is then surely seen.
    std::vector<bool> gone;
    for (int r = 0; r < size(); ++r)
      gone.push_back(context_->members().is_dead(world_rank(r)) || has_left(r, record_of(r)));
    for (int r = 0; r < size(); ++r) {
      GroupRecord* record = record_of(r);
      const bool mine = record && record->key.get() == spec_.key;
      if (mine && record->decided.get()) return verdict_of(*record);
      if (gone[static_cast<std::size_t>(r)]) continue;
      if (lowest < 0) lowest = r;
      if (!mine || shrinking_of(*record) != Shrinking::called) waiting.push_back(r);
    }
    if (lowest == rank_ && waiting.empty()) {
      Verdict v{{}, ~std::uint64_t{0}};
      for (int r = 0; r < size(); ++r) {
        if (gone[static_cast<std::size_t>(r)])
          v.dead.add(r);
        else
          v.resume = std::min(v.resume, record_of(r)->completed.get() + 1);
      }
      announce(v, &record_);
      context_->tell();
      return v;
    }
    if (Clock::now() > end) return shrink_timed_out(waiting, "called shrink()");
  }
}

/// What is to be seen of a member. First whether it will write no more, then what it wrote.
void Group::look_at_member(int r, Agreement::Member* m) {
  using Standing = Agreement::Standing;
  const int world = world_rank(r);
  const bool here = members_.local(r) >= 0, lost = r != rank_ && context_->members().is_dead(world);
  GroupRecord* record = record_of(r);
  const bool closed =
      context_->members().page(world).state.get() == static_cast<std::uint32_t>(ContextState::closed);
  bool ended = closed || (here && lost);
  if (!record && ended) record = record_of(r);
  if (record && record->key.get() != spec_.key) {  // another group's by now, with its last vote
    m->standing = Standing::lost;
    return;
  }
  bool last_vote_seen = true;
  if (record) {
    const Shrinking said = shrinking_of(*record);
    ended |= said == Shrinking::resigned || said == Shrinking::fenced || has_left(r, record);
    if (record->decided.get()) m->decided = verdict_of(*record);
    m->called = said == Shrinking::called;
    m->completed = record->completed.get();
    if (const std::uint32_t i = record->vote.get(); i > 0 && i <= kVotes) {
      const auto vote = read(context_->members().page(world).votes[i - 1], spec_.key);
      last_vote_seen = vote.has_value();
      if (vote) m->vote = *vote;
    }
  }
  if (r == rank_)
    m->standing = Standing::live;
  else if (ended && last_vote_seen)
    m->standing = here ? Standing::dead : Standing::out;
  else
    m->standing = ended || lost ? Standing::lost : Standing::live;
}

Result<Verdict> Group::agree_between_hosts() {
  if (shrinking_of(record_) == Shrinking::resigned)
    return Status(Reason::no_quorum, "this rank has found no quorum before, and takes no part any more");
  VoteRegister* ballot = claim_vote(context_->members().page(context_->rank()), record_);
  if (!ballot)
    return Status(Reason::resource,
                  fmt::format("{} groups of this rank are in shrink(), which is the limit", kVotes));
  Agreement agreement(rank_, size(), context_->network()->options().silent_fail,
                      read(*ballot, spec_.key).value_or(Vote{}));
  std::vector<Agreement::Member> members(spec_.ranks.size());
  Vote told = agreement.vote();
  const auto end = deadline_after(spec_.deadline);
  for (;; std::this_thread::sleep_for(kLookAgain)) {
    if (shrinking_of(record_) == Shrinking::fenced) return gone_on();
    for (int r = 0; r < size(); ++r) look_at_member(r, &members[static_cast<std::size_t>(r)]);
    auto outcome = agreement.step(members, Clock::now());
    if (agreement.vote() != told) {
      told = agreement.vote();
      write(*ballot, told);
      context_->tell();
    }
    if (outcome.state == Agreement::Outcome::decided) {
      announce(outcome.verdict, &record_);
      context_->tell();
      return outcome.verdict;
    }
    if (outcome.state == Agreement::Outcome::no_quorum) {
      auto called = static_cast<std::uint32_t>(Shrinking::called);
      std::atomic_ref(record_.shrinking.value)
          .compare_exchange_strong(called, static_cast<std::uint32_t>(Shrinking::resigned));
      context_->tell();
      return Status(Failure{
          .reason = Reason::no_quorum,
          .text = fmt::format(
              "ranks {{{}}} cannot be reached and are not proven dead; the others are too few to go on",
              fmt::join(outcome.waiting, ",")),
          .group = spec_.name,
          .generation = spec_.generation,
          .op = "shrink"});
    }
    if (Clock::now() > end) {
      const auto& w = outcome.waiting;
      const bool silent = std::any_of(w.begin(), w.end(),
                                      [&](int r) { return !members[static_cast<std::size_t>(r)].called; });
      return shrink_timed_out(w, silent ? "called shrink()" : "voted");
    }
  }
}

}  // namespace ouro::rt
