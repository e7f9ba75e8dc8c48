// Agreement on which members continue after a failure between hosts: Paxos over registers that one member
// writes and the others read, late or never. Pure: no clock, no shared memory, no threads. Used
// by Group::shrink.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/health/control_page.h"

namespace ouro::rt {

/// The members' registers are votes (control_page.h). A proposer promises itself a ballot; other members that
/// see the ballot promise it, too. With the promises of a quorum the proposer accepts a value under that
/// ballot: the value of the highest accepted ballot that it can see or, if there is none, its own. Other
/// members that see this accept the value. A value that a quorum has accepted under the newest ballot
/// is decided.
///
/// A quorum is more than half of the members that are not proven dead, or exactly half including the lowest
/// of them, so it shrinks as deaths are proven. Two such quorums intersect even if they are counted over
/// different sets of proven deaths. This rests on one rule: a death counts only together with the last vote
/// of the dead member. A rank that proves a death (a rank of the same host, which can read the page that
/// outlives its writer) therefore merges that vote into its own in the same write. Proof: let V be decided
/// under ballot b by voters A, with P proven dead, and let ballot b' > b gather promises R, with P' proven
/// dead. If a voter of A is in P', its last vote shows V. If a rank of R is in P, its last promise was b' >
/// b, and the decider, which saw that promise, would not have decided. Otherwise A has no rank of P' and R
/// none of P. Each is then a quorum of a set that contains all members outside P and P', and two such quorums
/// intersect: a rank in both had accepted V when it promised b'.
class Agreement {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Standing : std::uint8_t {
    live,
    lost,  ///< without a sign of life: dead, or behind a network that is cut
    out,   ///< it has itself declared, after its last vote, that it takes no further part
    dead,  ///< proven dead by this rank, which has read its last vote
  };
  /// What this rank can see of a member.
  struct Member {
    Standing standing = Standing::live;
    bool called = false;          ///< it has called shrink(), and its group is at rest
    std::uint64_t completed = 0;  ///< with `called`: the newest operation that succeeded
    std::optional<Verdict> decided;
    Vote vote;
  };
  struct Outcome {
    enum { going, decided, no_quorum } state = going;
    Verdict verdict;
    /// With `decided`: the ballot; 0 if another rank published the decision.
    std::uint64_t ballot = 0;
    /// With `going`: members that have yet to call shrink(), or else to vote; with `no_quorum`: members that
    /// cannot be reached.
    std::vector<int> waiting;
  };
  /// Continues from `mine`, the previous vote of this rank. Gives up after `patience` without enough members
  /// for a quorum.
  Agreement(int rank, int size, Clock::duration patience, const Vote& mine = {});

  /// One step of the agreement. `members` is indexed by rank; of this rank's own entry `called`, `completed`
  /// and `decided` are read. The caller must publish vote() to the others before it acts on the outcome.
  Outcome step(const std::vector<Member>& members, Clock::time_point now);
  const Vote& vote() const { return vote_; }

 private:
  bool is_quorum(const RankSet& voters, const RankSet& gone) const;
  void check_the_dead(const std::vector<Member>&);
  RankSet find_gone(const std::vector<Member>&) const;
  RankSet find_side(const std::vector<Member>&, const RankSet& gone, Clock::time_point now);
  void vote_as_asked(const std::vector<Member>&);
  void propose(const std::vector<Member>&, const RankSet& gone, const RankSet& side, Clock::time_point now);
  const Vote& vote_of(const std::vector<Member>&, int r) const;

  int rank_, size_;
  Clock::duration patience_;
  Vote vote_;
  std::uint64_t newest_ = 0;   // newest ballot that a member has promised
  Clock::time_point moved_{};  // when newest_ or ready_ last changed
  bool ready_ = false;
  int attempts_ = 0;                                  // ballots that this rank has made
  std::optional<Clock::time_point> lacking_since_;    // there have been too few members for a quorum
  std::optional<Clock::time_point> unsettled_since_;  // one member has given up another, but not vice versa
  bool settled_ = true;
};

}  // namespace ouro::rt
