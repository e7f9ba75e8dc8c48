// StagingRounds: the protocol of rounds, shared by all executors that use arrival records. Used by the
// staging, zero-copy and pull executors.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/exec/host/execution_plan.h"
#include "runtime/exec/host/ring_places.h"

namespace ouro::rt {

/// Values of MemoryRef::id in an arrival record that are no allocation: other ranks cannot refer to this
/// rank's buffers; `offset` is an address in its process; it can run the operations of a batch as one.
inline constexpr std::uint64_t kNoReference = ~std::uint64_t{0}, kAddress = ~std::uint64_t{0} - 1,
                               kAsOne = ~std::uint64_t{0} - 2;

/// Tracks the progress of this rank and the others through the rounds of their staging buffers: opens a
/// round's memory for writing, publishes what was written, waits for other ranks, and releases the round.
class StagingRounds {
  friend struct TestAccess;  // skips to later rounds

 public:
  StagingRounds(Wiring& wiring, const Members& members, Waiter& waiter, bool enough_cores)
      : wiring_(wiring),
        waiter_(waiter),
        rank_(members.rank()),
        n_(members.size()),
        enough_cores_(enough_cores),
        known_done_(static_cast<std::size_t>(n_)),
        ring_(wiring.slot_bytes().ring) {}

  /// Begins an operation with the next round. `use` says where its posts are stored.
  [[gnu::always_inline]] inline Status begin(const InFlight& f, const StagingUse& use) {
    if (!views_) [[unlikely]] {
      OURO_TRY(wiring_.need_staging());
      views_ = wiring_.staging().data();
    }
    tag_ = fold32(f.history);
    if (ring_.used() || use.span > 0) [[unlikely]] {
      ring_.begin(use.span, round_ - first_);
      wiring_.need_ring();
    }
    first_ = opened_ = round_;
    depth_ = use.depth, ahead_ = use.ahead;
    factor_ =
        f.plan->op.op.kind == OpKind::premulsum && f.plan->op.reduces() ? &f.plan->op.op.scalar : nullptr;
    met_ = false;
    return {};
  }
  std::uint64_t first() const { return first_; }    ///< first round of the operation
  std::uint64_t current() const { return round_; }  ///< the oldest round that is not released
  std::uint32_t tag() const { return tag_; }        ///< identifies the operation in arrival records
  const StagingView& mine() const { return views_[rank_]; }
  const StagingView& of(int r) const { return views_[r]; }

  /// The place in each rank's ring at which its post of `round` begins, if posts of this operation are
  /// in the ring.
  std::size_t place(std::uint64_t round) const { return ring_.place(round - first_); }
  /// Waits until all ranks have released the round that last used the memory of `round`. Called before
  /// anything is written to that memory.
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
  /// Publishes that this rank has reached `phase` of `round`; everything it wrote before is visible
  /// to readers.
  void publish(std::uint64_t round, StagingView::Phase phase) { mine().publish(round, phase, tag_); }
  /// Waits until rank `from` has reached phase `phase` of `round`. Returns a suspicion if that rank is in
  /// another operation.
  [[gnu::always_inline]] inline Status wait_for(int from, std::uint64_t round, StagingView::Phase phase) {
    const std::atomic_ref word(of(from).arrival(round).word);
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (!reached(static_cast<std::uint32_t>(seen), StagingView::serial(round, phase)))
      return wait_long(from, round, phase);
    return check_record(from, round, seen);
  }
  /// Notes that all other ranks have posted in `round`, so they have released all rounds before it.
  void note_all_posted(std::uint64_t round) { all_released_ = std::max(all_released_, round); }
  /// Waits until all ranks have reached this barrier; at most two barriers per round.
  Status barrier();
  /// Releases the oldest open round: this rank has read it, so its memory may be reused.
  [[gnu::always_inline]] inline void release() {
    met_ = false;
    const std::uint64_t round = ++round_;
    if (round % StagingView::kRenewal == 0) [[unlikely]]
      mine().renew(round);
    ouro::publish(*mine().done, round);
  }
  /// The premulsum factor of rank r. Precondition: it has posted in `round`.
  Scalar factor_of(int r, std::uint64_t round) const {
    const Arrival& record = of(r).arrival(round);
    return {record.premul_real, record.premul_integer};
  }

 private:
  static std::uint32_t fold32(std::uint64_t x) { return static_cast<std::uint32_t>(x ^ x >> 32); }
  Status await_room(std::uint64_t round);
  Status wait_long(int from, std::uint64_t round, StagingView::Phase);
  /// Evaluates `seen`, the word of the arrival record of `from` in `round`: notes which rounds that rank has
  /// released, and returns a suspicion if the record belongs to another operation.
  Status check_record(int from, std::uint64_t round, std::uint64_t seen) {
    // A rank that has reached this round has released all rounds more than `ahead_` before it, so its `done`
    // need not be read.
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
  std::uint64_t round_ = 0;                // the current round; equal on all ranks between operations
  std::uint64_t all_released_ = 0;         // all others have released the rounds below this one

  // State of the current operation.
  std::uint64_t first_ = 0;   // its first round
  std::uint64_t opened_ = 0;  // the memory of the rounds below this one is open
  std::uint64_t depth_ = 1, ahead_ = 0;
  RingPlaces ring_;
  std::uint32_t tag_ = 0;  // identifies this operation in arrival records
  const Scalar* factor_ = nullptr;
  bool met_ = false;  // the current round has had a barrier
};

}  // namespace ouro::rt
