// The pull executor: runs flows over buffers that are not registered. Used through run_flow.h, after
// by_reference.h has established that all ranks may read each other's memory.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Executes the steps of one operation by copying data, once, out of the private buffers of the
/// other processes.
class PullExecutor {
 public:
  PullExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch), h_(h), me_(h.members.rank()), n_(h.members.size()) {}
  Chunks chunks;

  /// Writes the addresses of this rank's buffers to its arrival record. Returns false if other ranks may not
  /// read them, or if they are not on huge pages (`any_pages`: skips the latter check).
  static bool offer(Context&, const Members&, const Operation&, bool any_pages, Arrival&);
  /// Whether this rank's output, and its input if other ranks read it, are on huge pages.
  static bool on_huge_pages(Context&, const Members&, const Operation&);
  Status begin(const InFlight&) { return {}; }
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kPost) return {};  // the arrival record already holds the addresses
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
  /// Copies `bytes` bytes, starting at byte `offset` of rank `from`'s input, or of its output if `result`,
  /// out of that rank's process.
  Status bring(int from, bool result, std::size_t offset, void* to, std::size_t bytes) const;

  HostResources& h_;
  const int me_, n_;
};

}  // namespace ouro::rt
