// The zero-copy executor: runs flows over registered buffers. Used through run_flow.h, after by_reference.h
// has established that all ranks have registered theirs.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Executes the steps of one operation by reading and writing the registered buffers of all ranks in place.
class ZeroCopyExecutor {
 public:
  ZeroCopyExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch), h_(h), scratch_(h.scratch), me_(h.members.rank()), n_(h.members.size()) {}
  ~ZeroCopyExecutor() {
    scratch_.inputs.clear();  // entries keep memory mapped
    scratch_.outputs.clear();
  }
  ZeroCopyExecutor(const ZeroCopyExecutor&) = delete;
  ZeroCopyExecutor& operator=(const ZeroCopyExecutor&) = delete;
  Chunks chunks;

  /// Writes the references of this rank's buffers to its arrival record. Returns false if they are not
  /// registered or must not be used in place.
  static bool offer(const Context&, const Operation&, int rank, Arrival&);
  /// Resolves the buffers that the arrival records of the current round refer to.
  Status begin(const InFlight&);
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kPost) return {};  // the arrival record already holds the references
    if (s.verb & flow::kBarrier) return barrier();
    if (s.verb & flow::kMulticast) return multicast(s);
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
  Status multicast(const flow::Step&);
  Status reduce(const flow::Step&);
  Status fetch(const flow::Step&);
  void gather_sources(const flow::Step&, Extent at);
  const std::byte* input_of(int r, Extent at) const {
    return scratch_.inputs[static_cast<std::size_t>(r)].data + at.offset * chunks.plan.elem;
  }
  /// The extent of chunk `s.at` in a peer's input.
  Extent source_of(const flow::Step& s) const {
    return chunks.op.blocks() ? chunks.in(s.at) : chunks.out(s.chunk);
  }

  HostResources& h_;
  Scratch& scratch_;
  const int me_, n_;
};

}  // namespace ouro::rt
