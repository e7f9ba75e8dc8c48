// Paxos over votes that are read, not sent. See agreement.h for why quorums intersect.
#include "runtime/health/agreement.h"

#include <algorithm>

#include "runtime/health/suspicions.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr int kRankBits = 16;  // of a ballot: the rank that made it, so that no two ranks make the same
constexpr auto kBackOff = 10ms;
constexpr int kMaxDoublings = 6;
constexpr int kImpatience = 8;  // the k-th rank in turn takes over after k of so many parts of the patience

int maker(std::uint64_t ballot) { return static_cast<int>(ballot & ((1u << kRankBits) - 1)); }

}  // namespace

Agreement::Agreement(int rank, int size, Clock::duration patience, const Vote& mine)
    : rank_(rank), size_(size), patience_(patience), vote_(mine) {}

const Vote& Agreement::vote_of(const std::vector<Member>& members, int r) const {
  return r == rank_ ? vote_ : members[static_cast<std::size_t>(r)].vote;
}

bool Agreement::is_quorum(const RankSet& voters, const RankSet& gone) const {
  int all = 0, yes = 0, first = -1;
  for (int r = 0; r < size_; ++r) {
    if (gone.has(r)) continue;
    if (first < 0) first = r;
    ++all;
    yes += voters.has(r);
  }
  if (2 * yes == all) return first >= 0 && voters.has(first);
  return 2 * yes > all;
}

/// Merges newly proven deaths and the last votes of the dead into this rank's vote, as if this rank had
/// received at once what the dead had received. This is safe: a promise is always allowed, and so is a vote
/// for a value that was proposed under the newest promised ballot.
void Agreement::check_the_dead(const std::vector<Member>& members) {
  vote_.suspects = {};
  for (int r = 0; r < size_; ++r) {
    const Member& m = members[static_cast<std::size_t>(r)];
    if (r == rank_) continue;
    if (m.standing == Standing::lost) vote_.suspects.add(r);
    if (m.standing != Standing::dead || vote_.proven.has(r)) continue;
    vote_.proven.add(r);
    vote_.proven.add(m.vote.proven);
    vote_.promised = std::max(vote_.promised, m.vote.promised);
    if (m.vote.accepted > vote_.accepted) vote_.accepted = m.vote.accepted, vote_.value = m.vote.value;
  }
}

/// The members that will never vote again, as far as that is proven and their last votes are part of
/// `members` or of this rank's vote.
RankSet Agreement::find_gone(const std::vector<Member>& members) const {
  RankSet gone;
  for (int r = 0; r < size_; ++r) {
    gone.add(vote_of(members, r).proven);
    const Standing s = r == rank_ ? Standing::live : members[static_cast<std::size_t>(r)].standing;
    if (s == Standing::out || s == Standing::dead) gone.add(r);
  }
  return gone;
}

/// The members with which this rank would continue. Starts from the live members that this rank does not
/// suspect; while two suspect each other, drops the one with most mutual suspicions. That may remove this
/// rank, too. If only one of two members suspects the other, it may just be the first to have learnt of a
/// death: this settles itself, or else counts as mutual after the patience.
RankSet Agreement::find_side(const std::vector<Member>& members, const RankSet& gone, Clock::time_point now) {
  RankSet side;
  for (int r = 0; r < size_; ++r)
    if (!gone.has(r) && !vote_.suspects.has(r)) side.add(r);
  const auto gave_up = [&](int a, int b) { return vote_of(members, a).suspects.has(b); };
  const bool late = unsettled_since_ && now - *unsettled_since_ >= patience_;
  side = without_mutual_suspicion(side, size_, [&](int a, int b) {
    return late ? gave_up(a, b) || gave_up(b, a) : gave_up(a, b) && gave_up(b, a);
  });
  bool settled = true;
  for (int r = 0; r < size_; ++r)
    for (int o = 0; o < size_ && side.has(r); ++o) settled &= !side.has(o) || !gave_up(r, o);
  if (settled && !late) unsettled_since_.reset();
  if (!settled && !unsettled_since_) unsettled_since_ = now;
  settled_ = settled;
  return side;
}

void Agreement::vote_as_asked(const std::vector<Member>& members) {
  for (int r = 0; r < size_; ++r) vote_.promised = std::max(vote_.promised, vote_of(members, r).promised);
  for (int r = 0; r < size_; ++r) {
    const Vote& v = vote_of(members, r);
    if (v.accepted <= vote_.accepted) continue;
    if (v.accepted < vote_.promised) continue;
    vote_.accepted = v.accepted;  // not older than the promise, so it is that ballot
    vote_.promised = std::max(vote_.promised, v.accepted);
    vote_.value = v.value;
  }
}

void Agreement::propose(const std::vector<Member>& members, const RankSet& gone, const RankSet& side,
                        Clock::time_point now) {
  const Vote* newest = &vote_;
  RankSet promises;
  for (int r = 0; r < size_; ++r) {
    const Vote& v = vote_of(members, r);
    if (v.accepted > newest->accepted) newest = &v;
    if (v.promised == vote_.promised) promises.add(r);
  }
  // A value that may have been chosen already needs no further consent; a new one needs that of all members
  // that it keeps.
  const bool all_called = [&] {
    for (int r = 0; r < size_; ++r)
      if (side.has(r) && !members[static_cast<std::size_t>(r)].called) return false;
    return true;
  }();
  const bool ready =
      side.has(rank_) && is_quorum(side, gone) && ((all_called && settled_) || newest->accepted > 0);
  if (newest_ != vote_.promised || ready != ready_) moved_ = now;
  newest_ = vote_.promised;
  ready_ = ready;
  if (!ready) return;
  const bool mine = vote_.promised > 0 && maker(vote_.promised) == rank_;
  if (mine && vote_.accepted == vote_.promised) return;
  if (mine) {
    if (!is_quorum(promises, gone)) return;
    if (newest->accepted > 0) {
      vote_.value = newest->value;
    } else if (all_called && settled_) {
      vote_.value = {{}, ~std::uint64_t{0}};
      for (int r = 0; r < size_; ++r) {
        if (side.has(r))
          vote_.value.resume =
              std::min(vote_.value.resume, members[static_cast<std::size_t>(r)].completed + 1);
        else
          vote_.value.dead.add(r);
      }
    } else {
      return;
    }
    vote_.accepted = vote_.promised;
    return;
  }
  // Turns: the lowest rank of the side begins. A rank that is outbid waits, longer each time. If the maker of
  // the newest ballot is lost or suspected, the lowest rank need not wait, but only for its first ballot: two
  // ranks that have given each other up, and that the others can reach, would otherwise outbid each other
  // forever. The other ranks wait for their turn, in case the lowest does not do its part.
  const int turn = [&] {
    int before = 0;
    for (int r = 0; r < rank_; ++r) before += side.has(r);
    return before;
  }();
  const int made = maker(vote_.promised);
  const bool orphaned = vote_.promised > 0 && (gone.has(made) || vote_.suspects.has(made));
  Clock::duration wait = turn == 0 ? kBackOff * (1 + rank_ % 8) : patience_ / kImpatience * turn;
  wait *= 1 << std::min(attempts_, kMaxDoublings);
  if (turn == 0 && (vote_.promised == 0 || (orphaned && attempts_ == 0))) wait = Clock::duration{0};
  if (now - moved_ < wait) return;
  ++attempts_;
  const std::uint64_t round = (vote_.promised >> kRankBits) + 1;
  vote_.promised = round << kRankBits | static_cast<std::uint64_t>(rank_);
  newest_ = vote_.promised;
  moved_ = now;
}

Agreement::Outcome Agreement::step(const std::vector<Member>& members, Clock::time_point now) {
  for (const Member& m : members)
    if (m.decided) return {Outcome::decided, *m.decided, 0, {}};
  check_the_dead(members);
  vote_as_asked(members);
  const RankSet gone = find_gone(members), side = find_side(members, gone, now);
  propose(members, gone, side, now);

  RankSet voters;
  for (int r = 0; r < size_; ++r) {
    const Vote& v = vote_of(members, r);
    const bool kept = v.promised == vote_.promised && v.accepted == v.promised;
    if (v.accepted == vote_.accepted && kept) voters.add(r);
  }
  if (vote_.accepted > 0 && is_quorum(voters, gone))
    return {Outcome::decided, vote_.value, vote_.accepted, {}};

  if (is_quorum(side, gone)) {
    lacking_since_.reset();
  } else {
    if (!lacking_since_) lacking_since_ = now;
    if (now - *lacking_since_ >= patience_) {
      Outcome o{Outcome::no_quorum, {}, 0, {}};
      for (int r = 0; r < size_; ++r)
        if (vote_.suspects.has(r) && !gone.has(r)) o.waiting.push_back(r);
      return o;
    }
  }
  Outcome o;
  for (int r = 0; r < size_; ++r)
    if (side.has(r) && r != rank_ && !members[static_cast<std::size_t>(r)].called) o.waiting.push_back(r);
  for (int r = 0; r < size_ && o.waiting.empty(); ++r)
    if (side.has(r) && r != rank_ && !voters.has(r)) o.waiting.push_back(r);
  return o;
}

}  // namespace ouro::rt
