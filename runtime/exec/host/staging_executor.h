// The staging executor: runs flows whose ranks read each other's staging buffers. Used through run_flow.h.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Executes the steps of one operation by copying into this rank's staging buffer and reading those of the
/// other ranks.
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
  // It is inlined into a flow, whose verbs are literals, so that only one call per step remains.
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
  /// Waits until rank `from` has posted chunk `s.at` (its result if `s.verb` has kResult). *where: the
  /// posted data.
  Status await_post(int from, const flow::Step& s, const void** where);
  std::uint64_t round_of(int chunk) const {
    return rounds_.first() + chunks.cut.round_of(chunk, chunks.round);
  }

  const StagingUse& use_;
  StagingRounds& rounds_;
  Scratch& scratch_;
  const int me_, n_;
};

/// Copies into a piece of a post.
[[gnu::always_inline]] inline void copy_post(const StagingUse& use, void* to, const void* from,
                                             std::size_t bytes) {
  use.built_in ? kernels::copy_built_in(to, from, bytes) : kernels::copy_slot(to, from, bytes);
}

/// Address of piece `position` of a rank's post in round `round` of the operation; `v` is that rank's view.
inline std::byte* piece_at(const StagingRounds& rounds, const StagingUse& use, const StagingView& v,
                           std::uint64_t round, std::size_t position) {
  std::byte* const first = use.on == StagingUse::On::slot      ? v.slot(round)
                           : use.on == StagingUse::On::ring    ? v.ring + rounds.place(round)
                           : use.on == StagingUse::On::arrival ? v.arrival(round).payload
                                                               : v.eager(round);
  return first + position * use.stride;
}

}  // namespace ouro::rt
