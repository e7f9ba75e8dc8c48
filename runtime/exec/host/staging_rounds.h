// Rounds over staging buffers: what all executors that use arrival records share. Used by the staging,
// zero-copy and pull executors.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/exec/host/execution_plan.h"

namespace ouro::rt {

/// What an arrival record says of a rank's buffers in place of the id of an allocation: that others cannot
/// refer to them; that what follows is an address in its process; that it can run the operations of a batch
/// as one.
inline constexpr std::uint64_t kNoReference = ~std::uint64_t{0}, kAddress = ~std::uint64_t{0} - 1,
                               kAsOne = ~std::uint64_t{0} - 2;

/// How far this rank and the others have come in the rounds of their staging buffers: opens a round's memory
/// for writing, publishes what was written, waits for others, and releases the round.
class StagingRounds {
  friend struct TestAccess;  // rounds that nobody has run

 public:
  StagingRounds(Wiring& wiring, const Members& members, Waiter& waiter, bool enough_cores)
      : wiring_(wiring),
        waiter_(waiter),
        rank_(members.rank()),
        n_(members.size()),
        enough_cores_(enough_cores),
        known_done_(static_cast<std::size_t>(n_)) {}

  /// An operation begins, with the next round. Its posts lie as `use` says.
  [[gnu::always_inline]] inline Status begin(const InFlight& f, const StagingUse& use) {
    if (!views_) [[unlikely]] {
      OURO_TRY(wiring_.need_staging());
      views_ = wiring_.staging().data();
    }
    tag_ = fold32(f.history);
    first_ = opened_ = round_;
    depth_ = use.depth, ahead_ = use.ahead;
    factor_ =
        f.plan->op.op.kind == OpKind::premulsum && f.plan->op.reduces() ? &f.plan->op.op.scalar : nullptr;
    met_ = false;
    return {};
  }
  std::uint64_t first() const { return first_; }    ///< round of the operation
  std::uint64_t current() const { return round_; }  ///< the oldest that is not released
  std::uint32_t tag() const { return tag_; }        ///< of the operation on arrival records
  const StagingView& mine() const { return views_[rank_]; }
  const StagingView& of(int r) const { return views_[r]; }

  /// Before anything is written to the memory of this round: everyone has released the round that used it
  /// last.
  [[gnu::always_inline]] inline Status open(std::uint64_t round) {
    if (round < opened_) return {};
    if (round >= all_released_ + depth_) OURO_TRY(await_room(round));
    opened_ = round + 1;
    if (factor_) {
      Arrival& record = mine().arrival(round);
      record.premul_real = factor_->real;
      record.premul_integer = factor_->integer;
    }
    return {};
  }
  /// To all others: this rank has come so far in this round, and what it wrote before is there.
  void publish(std::uint64_t round, StagingView::Phase phase) { mine().publish(round, phase, tag_); }
  /// Until rank `from` has come so far. A suspicion if it is in another operation.
  [[gnu::always_inline]] inline Status wait_for(int from, std::uint64_t round, StagingView::Phase phase) {
    const std::atomic_ref word(of(from).arrival(round).word);
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (!reached(static_cast<std::uint32_t>(seen), StagingView::serial(round, phase)))
      return wait_long(from, round, phase);
    return heard(from, round, seen);
  }
  /// All others have posted in this round, so they have released all rounds before it.
  void heard_all(std::uint64_t round) { all_released_ = std::max(all_released_, round); }
  /// Until everyone has come to it; at most two in a round.
  Status barrier();
  /// The oldest round that is not released is read: its memory may be used again.
  [[gnu::always_inline]] inline void release() {
    met_ = false;
    const std::uint64_t round = ++round_;
    if (round % StagingView::kRenewal == 0) [[unlikely]]
      mine().renew(round);
    ouro::publish(*mine().done, round);
  }
  /// The factor of rank r (premulsum), which has posted in this round.
  Scalar factor_of(int r, std::uint64_t round) const {
    const Arrival& record = of(r).arrival(round);
    return {record.premul_real, record.premul_integer};
  }

 private:
  static std::uint32_t fold32(std::uint64_t x) { return static_cast<std::uint32_t>(x ^ x >> 32); }
  Status await_room(std::uint64_t round);
  Status wait_long(int from, std::uint64_t round, StagingView::Phase);
  /// What `seen`, the word of an arrival record of this round, tells.
  Status heard(int from, std::uint64_t round, std::uint64_t seen) {
    // Who has come to this round has released those that lie far enough behind: no need to ask for its
    // `done`.
    auto& known = known_done_[static_cast<std::size_t>(from)];
    known = std::max({known, first_, round - std::min(round, ahead_)});
    if (static_cast<std::uint32_t>(seen >> 32) != tag_) return suspicion(from, "arrival record");
    return {};
  }

  Wiring& wiring_;
  Waiter& waiter_;
  const int rank_, n_;
  const bool enough_cores_;
  const StagingView* views_ = nullptr;     // by rank
  std::vector<std::uint64_t> known_done_;  // rounds that each rank is known to have released
  std::uint64_t round_ = 0;                // the same on all ranks between operations
  std::uint64_t all_released_ = 0;         // all others have released the rounds below

  // Of the operation at hand.
  std::uint64_t first_ = 0;   // its first round
  std::uint64_t opened_ = 0;  // rounds below have their memory open
  std::uint64_t depth_ = 1, ahead_ = 0;
  std::uint32_t tag_ = 0;  // of this operation on arrival records
  const Scalar* factor_ = nullptr;
  bool met_ = false;  // in the round at hand
};

}  // namespace ouro::rt
