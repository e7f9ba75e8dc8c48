// The pull executor: flows over buffers that are not registered. Used through run_flow.h, after
// by_reference.h has found that all ranks may read each other's memory.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Carries out the steps of one operation by copying, once, out of the private buffers of the other
/// processes.
class PullExecutor {
 public:
  PullExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch), h_(h), me_(h.members.rank()), n_(h.members.size()) {}
  Chunks chunks;

  /// Writes to this rank's arrival record the addresses of its buffers; false if others may not read them, or
  /// if that is not worth it (`forced`: do not ask).
  static bool offer(Context&, const Members&, const Operation&, bool forced, Arrival&);
  /// Whether the buffers of this rank that are read out of it or written lie on huge pages.
  static bool on_huge_pages(const Members&, const Operation&);
  Status begin(const InFlight&) { return {}; }
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kPost) return {};  // the arrival record has said it
    if (s.verb & flow::kBarrier) return barrier();
    if (s.verb & flow::kPosted) return s.from == flow::kEveryone ? reduce(s) : fetch(s);
    chunks.local(s);
    return {};
  }
  Status end_round() {
    h_.rounds.release();
    return {};
  }

 private:
  Status barrier();
  Status reduce(const flow::Step&);
  Status fetch(const flow::Step&);
  /// Copies `bytes` from byte `offset` on out of the input of rank `from`, or its output, in its process.
  Status bring(int from, bool result, std::size_t offset, void* to, std::size_t bytes) const;

  HostResources& h_;
  const int me_, n_;
};

}  // namespace ouro::rt
