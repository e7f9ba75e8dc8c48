// The staging executor: flows whose ranks read each other's staging buffers. Used through run_flow.h.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Carries out the steps of one operation by copies into this rank's staging buffer and reads of the others'.
class StagingExecutor {
 public:
  StagingExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch),
        use_(flow.staging),
        rounds_(h.rounds),
        scratch_(h.scratch),
        me_(h.members.rank()),
        n_(h.members.size()) {}
  Chunks chunks;

  Status begin(const InFlight& f) { return rounds_.begin(f, use_); }
  // Inlined into a flow, whose verbs are literals: what is left is one call.
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kPost) return s.verb & flow::kResult ? post_result(s) : post(s);
    if (s.verb & flow::kRelease) return end_round();
    if (s.verb & flow::kBarrier) return rounds_.barrier();
    if (s.verb & flow::kPosted) return s.from == flow::kEveryone ? reduce(s) : fetch(s);
    chunks.local(s);
    return {};
  }
  Status end_round() {
    rounds_.release();
    return {};
  }

 private:
  Status post(const flow::Step&);
  Status post_result(const flow::Step&);
  Status fetch(const flow::Step&);
  Status reduce(const flow::Step&);
  /// Waits for what rank `from` has posted of chunk `s.at`.
  Status await_post(int from, const flow::Step& s, const void** where);
  std::uint64_t round_of(int chunk) const {
    return rounds_.first() + chunks.cut.round_of(chunk, chunks.round);
  }

  const StagingUse& use_;
  StagingRounds& rounds_;
  Scratch& scratch_;
  const int me_, n_;
};

/// Piece `position` of what a rank posts in a round.
inline std::byte* piece_at(const StagingUse& use, const StagingView& v, std::uint64_t round,
                           std::size_t position) {
  std::byte* const first = use.on == StagingUse::On::slot      ? v.slot(round)
                           : use.on == StagingUse::On::arrival ? v.arrival(round).payload
                                                               : v.eager(round);
  return first + position * use.stride;
}

}  // namespace ouro::rt
