// Agreement on the remaining ranks after a failure. See survivors.h.
#include "runtime/group/survivors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "runtime/core/deadline.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kReadAgain = 500us;

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

bool Survivors::fenced() const { return shrinking_of(members_.mine()) == Shrinking::fenced; }

Result<Verdict> Survivors::agree(bool one_host) {
  GroupRecord& mine = members_.mine();
  // The network thread may set `fenced` at any time, which must stay.
  auto no = static_cast<std::uint32_t>(Shrinking::no);
  std::atomic_ref(mine.shrinking.value)
      .compare_exchange_strong(no, static_cast<std::uint32_t>(Shrinking::called));
  context_.notify_other_hosts();
  auto verdict = one_host ? agree_here() : agree_between_hosts();
  if (verdict.ok() && verdict->dead.has(members_.rank())) return gone_on();
  return verdict;
}

/// A rank that was late until the deadline, or whose process was stopped for as long as a rank may be silent.
/// It learns this from the decision when that arrives.
bool Survivors::left_behind(int r, const GroupRecord* record) {
  if (r == members_.rank() || settings_.why.ok()) return false;
  const Failure& f = *settings_.why.failure();
  if (f.reason == Reason::peer_unresponsive) return f.rank == r && members_.is_here(r);
  if (f.reason != Reason::deadline || f.seq == 0 || (record && record->entered.get() >= f.seq)) return false;
  return Clock::now() - start_ >= std::min(settings_.patience, settings_.deadline);
}

Status Survivors::timed_out(const std::vector<int>& waiting, const char* for_what) const {
  return Status(Failure{.reason = Reason::deadline,
                        .text = fmt::format("ranks {{{}}} have not {}", fmt::join(waiting, ","), for_what),
                        .group = settings_.group,
                        .generation = settings_.generation,
                        .op = "shrink"});
}

/// Pages outlive their writers: the lowest live rank decides once all live ranks are at rest in shrink(), and
/// publishes the dead set with one release store. A rank that takes over after its death first adopts a
/// decision that it may have left behind. All deaths on one host are proven (pidfd), so no quorum is needed.
Result<Verdict> Survivors::agree_here() {
  const auto end = deadline_after(settings_.deadline);
  std::vector<int> waiting;
  for (;; std::this_thread::sleep_for(kReadAgain)) {
    if (fenced()) return gone_on();
    waiting.clear();
    int lowest = -1;
    // Reads first which ranks are lost, then whether one has decided: a decision that a dead rank left behind
    // is then surely seen.
    std::vector<bool> gone;
    for (int r = 0; r < members_.size(); ++r) gone.push_back(members_.is_dead(r) || members_.has_left(r));
    for (int r = 0; r < members_.size(); ++r) {
      const GroupRecord* const record = members_.find_ours(r);
      if (record && record->decided.get()) return verdict_of(*record);
      if (gone[static_cast<std::size_t>(r)]) continue;
      if (lowest < 0) lowest = r;
      if (record && shrinking_of(*record) == Shrinking::called) continue;
      // Only the deciding rank may leave a rank behind, and never the lowest, which alone decides when
      // it arrives.
      if (r != lowest && left_behind(r, record))
        gone[static_cast<std::size_t>(r)] = true;
      else
        waiting.push_back(r);
    }
    if (lowest == members_.rank() && waiting.empty()) {
      Verdict v{{}, ~std::uint64_t{0}};
      for (int r = 0; r < members_.size(); ++r) {
        if (gone[static_cast<std::size_t>(r)])
          v.dead.add(r);
        else
          v.resume = std::min(v.resume, members_.find(r)->completed.get() + 1);
      }
      announce(v, &members_.mine());
      context_.notify_other_hosts();
      return v;
    }
    if (Clock::now() > end) return timed_out(waiting, "called shrink()");
  }
}

/// Reads the state of a member: first whether it will write no more, then what it has written.
void Survivors::read_member(int r, Agreement::Member* m) {
  using Standing = Agreement::Standing;
  const bool here = members_.is_here(r), lost = r != members_.rank() && members_.is_dead(r);
  GroupRecord* record = members_.find(r);
  bool ended = members_.has_closed(r) || (here && lost);
  if (!record && ended) record = members_.find(r);
  if (record && record->key.get() != members_.key()) {  // record and last vote are another group's by now
    m->standing = Standing::lost;
    return;
  }
  bool last_vote_seen = true;
  if (record) {
    const Shrinking said = shrinking_of(*record);
    ended |= said == Shrinking::resigned || said == Shrinking::fenced || members_.has_left(r, record);
    if (record->decided.get()) m->decided = verdict_of(*record);
    m->called = said == Shrinking::called;
    m->completed = record->completed.get();
    if (const std::uint32_t i = record->vote.get(); i > 0 && i <= kVotes) {
      const auto vote = read(members_.page(r).votes[i - 1], members_.key());
      last_vote_seen = vote.has_value();
      if (vote) m->vote = *vote;
    }
  }
  if (r == members_.rank())
    m->standing = Standing::live;
  else if (ended && last_vote_seen)
    m->standing = here ? Standing::dead : Standing::out;
  else
    m->standing = ended || lost || (!m->called && left_behind(r, record)) ? Standing::lost : Standing::live;
}

Result<Verdict> Survivors::agree_between_hosts() {
  if (shrinking_of(members_.mine()) == Shrinking::resigned)
    return Status(Reason::no_quorum, "this rank has found no quorum before, and takes no part any more");
  VoteRegister* ballot = claim_vote(context_.members().own_page(), members_.mine());
  if (!ballot)
    return Status(Reason::resource,
                  fmt::format("{} groups of this rank are in shrink(), which is the limit", kVotes));
  Agreement agreement(members_.rank(), members_.size(), context_.network()->options().silent_fail,
                      read(*ballot, members_.key()).value_or(Vote{}));
  std::vector<Agreement::Member> members(static_cast<std::size_t>(members_.size()));
  Vote told = agreement.vote();
  const auto end = deadline_after(settings_.deadline);
  for (;; std::this_thread::sleep_for(kReadAgain)) {
    if (fenced()) return gone_on();
    for (int r = 0; r < members_.size(); ++r) read_member(r, &members[static_cast<std::size_t>(r)]);
    auto outcome = agreement.step(members, Clock::now());
    if (agreement.vote() != told) {
      told = agreement.vote();
      write(*ballot, told);
      context_.notify_other_hosts();
    }
    if (outcome.state == Agreement::Outcome::decided) {
      announce(outcome.verdict, &members_.mine());
      context_.notify_other_hosts();
      return outcome.verdict;
    }
    if (outcome.state == Agreement::Outcome::no_quorum) {
      auto called = static_cast<std::uint32_t>(Shrinking::called);
      std::atomic_ref(members_.mine().shrinking.value)
          .compare_exchange_strong(called, static_cast<std::uint32_t>(Shrinking::resigned));
      context_.notify_other_hosts();
      return Status(Failure{
          .reason = Reason::no_quorum,
          .text = fmt::format(
              "ranks {{{}}} cannot be reached and are not proven dead; the others are too few to go on",
              fmt::join(outcome.waiting, ",")),
          .group = settings_.group,
          .generation = settings_.generation,
          .op = "shrink"});
    }
    if (Clock::now() > end) {
      const auto& w = outcome.waiting;
      const bool silent = std::any_of(w.begin(), w.end(),
                                      [&](int r) { return !members[static_cast<std::size_t>(r)].called; });
      return timed_out(w, silent ? "called shrink()" : "voted");
    }
  }
}

}  // namespace ouro::rt
