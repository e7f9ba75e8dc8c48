// Rounds of a channel's staging buffers: which ranks have posted, reached a barrier, or released which
// rounds. Used by resident_body.h and resident_switch.h.
#pragma once
#include "kernels/gpu/resident_channel.h"

namespace ouro::gpu {

/// A rank's phase in a round k: its arrival record holds 4k + phase (as StagingView::Phase on the host).
struct ResidentPhase {
  enum Phase : std::uint64_t { kPosted = 2, kResult = 3, kSecondBarrier = 4 };
};

/// The whole block calls each function; the result is the same for all of its threads.
template <class Block>
class ResidentRounds : protected ResidentChannel<Block>, protected ResidentPhase {
  using Channel = ResidentChannel<Block>;

 protected:
  using Channel::a_;
  using Channel::b_;
  using Channel::Channel;
  using Channel::n_;
  using Channel::shared_;

  template <class F>
  OURO_HD void each_peer(F&& f) const {
    for (int p = b_.thread(); p < n_; p += b_.threads())
      if (p != a_.rank) f(p);
  }
  /// Waits, before anything of this round is written, until all ranks have released the round that used
  /// its slot last.
  OURO_HD bool open(std::uint64_t round) {
    bool failed = false;
    if (round >= ResidentLayout::kStagingSlots)
      each_peer([&](int p) {
        const std::uint64_t need = round + 1 - ResidentLayout::kStagingSlots;
        if (shared_.state.known[p] >= need) return;
        failed |= this->await(this->line(a_.rank, a_.layout.done_at, p), need, p);
        shared_.state.known[p] = need;
      });
    return !(failed_ = b_.any(failed));
  }
  OURO_HD void announce(std::uint64_t round, Phase phase) const {
    b_.sync();
    each_peer([&](int p) {
      ResidentArrival& arrival = this->arrival(a_.rank, p);
      if (phase == kPosted) arrival.premul[round % ResidentLayout::kStagingSlots] = a_.premul;
      if (phase == kPosted && a_.by_pointer) {
        ResidentNames& names = this->names(a_.rank, p);
        names.in[round % ResidentLayout::kStagingSlots] = a_.in_ref;
        names.out[round % ResidentLayout::kStagingSlots] = a_.out_ref;
      }
      this->publish_tagged(&arrival.word[round % ResidentLayout::kStagingSlots], 4 * round + phase);
    });
  }
  OURO_HD bool await_phase(int p, std::uint64_t round, Phase phase) {
    const bool failed = this->await_tagged(
        &this->arrival(p, a_.rank).word[round % ResidentLayout::kStagingSlots], 4 * round + phase, p);
    // A rank that has reached this round has released every round more than `ahead_` behind it, and all
    // rounds of earlier operations.
    const std::uint64_t released = round - base_ > ahead_ ? round - ahead_ : base_;
    if (shared_.state.known[p] < released) shared_.state.known[p] = released;
    return failed;
  }
  OURO_HD bool await_phase_of_all(std::uint64_t round, Phase phase) {
    bool failed = false;
    each_peer([&](int p) { failed |= await_phase(p, round, phase); });
    return !(failed_ = b_.any(failed));
  }

  OURO_HD void end_round() {
    b_.sync();
    const std::uint64_t released = shared_.state.round + 1;
    each_peer([&](int p) { this->publish(this->line(p, a_.layout.done_at, a_.rank), released); });
    met_ = false;
    b_.sync();
    if (b_.thread() == 0) shared_.state.round = released;
  }

  bool failed_ = false;
  bool met_ = false;         // a barrier of the current round has been passed
  std::uint64_t base_ = 0;   // first round of the staging buffers in this operation
  std::uint64_t ahead_ = 0;  // most rounds between posting a round and having released it
};

}  // namespace ouro::gpu
