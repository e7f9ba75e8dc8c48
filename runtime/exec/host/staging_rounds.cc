// Rounds over staging buffers: the waits. See staging_rounds.h.
#include "runtime/exec/host/staging_rounds.h"

namespace ouro::rt {
namespace {

/// Polls `done` at long intervals, for some 10 us in total, until it reaches `at_least`. Used by a root that
/// has run as far ahead as it can: it waits for room for many rounds at once, because each load takes the
/// counter's cache line away from the reader, which writes it in each round.
void poll_seldom(const Counter& done, std::uint64_t at_least) {
  constexpr int kPolls = 16, kPauses = 32;
  for (int polls = 0; polls < kPolls && load(done) < at_least; ++polls)
    for (int i = 0; i < kPauses; ++i) relax();
}

}  // namespace

Status StagingRounds::await_room(std::uint64_t round) {
  const std::uint64_t need = round + 1 - depth_;
  std::uint64_t least = round;
  for (int r = 0; r < n_; ++r) {
    if (r == rank_) continue;
    auto& known = known_done_[static_cast<std::size_t>(r)];
    if (known < need) {
      Counter& done = *of(r).done;
      if (depth_ == StagingView::kArrivals && enough_cores_)
        poll_seldom(done, std::min(first_, need + depth_ / 2));
      OURO_TRY(waiter_.until(done, need));
      known = load(done);
    }
    least = std::min(least, known);
  }
  all_released_ = least;
  return {};
}

Status StagingRounds::wait_long(int from, std::uint64_t round, StagingView::Phase phase) {
  const StagingView& theirs = of(from);
  std::uint64_t& word = theirs.arrival(round).word;
  OURO_TRY(waiter_.until({&word, theirs.sleepers}, StagingView::serial(round, phase)));
  return check_record(from, round, std::atomic_ref(word).load(std::memory_order_acquire));
}

Status StagingRounds::barrier() {
  OURO_TRY(open(round_));
  const StagingView::Phase phase = met_ ? StagingView::kSecondBarrier : StagingView::kResult;
  met_ = true;
  publish(round_, phase);
  for (int r = 0; r < n_; ++r)
    if (r != rank_) OURO_TRY(wait_for(r, round_, phase));
  return {};
}

}  // namespace ouro::rt
