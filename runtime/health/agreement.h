// Agreement on who goes on after a failure between hosts: Paxos over registers that one member writes and the
// others read, late or never. Pure: no clock, no memory of others, no threads. Used by Group::shrink.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// The members' registers are votes (control_page.h). A member that proposes promises itself a ballot; others
/// that see it promise it, too. With the promises of a quorum the proposer accepts a value under that ballot,
/// the one of the highest ballot that it can see accepted or, if there is none, its own; others that see it
/// accept it. A value that a quorum has accepted under the newest ballot is decided.
///
/// A quorum is more than half of the members not proven dead, or exactly half with the lowest of them, so it
/// shrinks as deaths are proven. That two such quorums meet, although each is counted over other proofs,
/// rests on one rule: a death counts only together with the last vote of the dead. Whoever proves one (a rank
/// of the same host, which can read the page that outlives its writer) therefore merges that vote into its
/// own in the same write. Let V be decided under b by voters A over proofs P, and let b' > b gather promises
/// R over proofs P'. If a voter of A is in P', its last vote shows V. If a rank of R is in P, its last
/// promise was b' > b and the decider, who saw it, would not have decided. Else A and R, P and P' aside, are
/// quorums of sets that contain all members without P and P', and two such sets meet: whoever is in both had
/// accepted V when it promised b'.
class Agreement {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Standing : std::uint8_t {
    live,
    lost,  ///< nothing is heard of it: dead, or behind a network that is cut
    out,   ///< it said itself that it takes no part any more, after its last vote
    dead,  ///< proven by this rank, which was able to read its last vote
  };
  /// What this rank can see of a member.
  struct Member {
    Standing standing = Standing::live;
    bool called = false;          ///< it has called shrink(), and its group is at rest
    std::uint64_t completed = 0;  ///< with `called`: the newest operation that ended well
    std::optional<Verdict> decided;
    Vote vote;
  };
  struct Outcome {
    enum { going, decided, no_quorum } state = going;
    Verdict verdict;
    std::uint64_t ballot = 0;  ///< with `decided`, 0 if another rank said so
    std::vector<int>
        waiting;  ///< going: who has yet to call, or else to vote; no_quorum: who cannot be reached
  };
  /// Goes on from `mine`, the vote that this rank gave before. After `patience` without the members for a
  /// quorum it gives up.
  Agreement(int rank, int size, Clock::duration patience, const Vote& mine = {});

  /// `members` by rank; of this rank `called` and `completed` are looked at. Before anything is done about
  /// the outcome vote() has to be where others see it.
  Outcome step(const std::vector<Member>& members, Clock::time_point now);
  const Vote& vote() const { return vote_; }

 private:
  bool is_quorum(const RankSet& voters, const RankSet& gone) const;
  void look_at_the_dead(const std::vector<Member>&);
  RankSet find_gone(const std::vector<Member>&) const;
  RankSet find_side(const std::vector<Member>&, const RankSet& gone, Clock::time_point now);
  void vote_as_asked(const std::vector<Member>&);
  void propose(const std::vector<Member>&, const RankSet& gone, const RankSet& side, Clock::time_point now);
  const Vote& vote_of(const std::vector<Member>&, int r) const;

  int rank_, size_;
  Clock::duration patience_;
  Vote vote_;
  std::uint64_t newest_ = 0;   // ballot that anybody has promised
  Clock::time_point moved_{};  // when that, or whether all have called, last changed
  bool ready_ = false;
  int attempts_ = 0;                                  // ballots of this rank
  std::optional<Clock::time_point> lacking_since_;    // members for a quorum
  std::optional<Clock::time_point> unsettled_since_;  // one member has given up another, who has not
  bool settled_ = true;
};

}  // namespace ouro::rt
