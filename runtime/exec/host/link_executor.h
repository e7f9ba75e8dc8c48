// The link executor: runs flows whose ranks send and forward messages. Used through run_flow.h.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Executes the hops of one operation over the slots of links; partial sums are kept in accumulators.
class LinkExecutor {
 public:
  LinkExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch), h_(h), f_(f), pairs_(chunks.op.uneven_pairs()) {}
  Chunks chunks;

  Status begin(const InFlight&) { return h_.wiring.need_links(); }
  Status hop(const flow::Step& s) {
    if (s.verb & flow::kRecv) return receive(s);
    if (s.verb & flow::kSend) return send(s);
    if (s.verb & (flow::kAcc | flow::kKeep))
      accumulate(s);
    else
      chunks.local(s);
    return {};
  }
  Status end_round() { return {}; }

 private:
  using LinkEnd = transport::LinkEnd;
  Status receive(const flow::Step&);
  Status send(const flow::Step&);
  void accumulate(const flow::Step&);  ///< a step that involves no message
  /// Processes `got`, a received input: mine + weight * got.
  void mix(const flow::Step&, Extent in, Extent out, const std::byte* got, std::size_t count);
  /// Processes `got`, a received partial sum. It is wide, as accumulators are: the loops read and
  /// write slots.
  void combine(const flow::Step&, Extent in, Extent out, const std::byte* got, std::byte* slot,
               std::size_t count);
  Status await_message(LinkEnd&, int from, std::size_t bytes, std::size_t total);
  Status await(const LinkEnd&, Counter&, std::uint64_t at_least, InFlight::Awaited);
  Status await_room(LinkEnd&, int rank);
  void publish_message(LinkEnd&, const flow::Step&, std::size_t count, std::size_t total);
  /// Pairs of ranks with uneven lengths have different numbers of rounds: neither end sends or expects an
  /// empty piece.
  bool skipped(std::size_t count) const { return pairs_ && chunks.round > 0 && count == 0; }
  /// Accumulator of `chunk`. The chunks of pipelined flows share one: they finish a chunk before the
  /// next (kernels/flow/traits.h).
  std::byte* accumulator(int chunk) {
    return h_.scratch.bytes.data() + (chunks.cut.pipelined() ? 0 : static_cast<std::size_t>(chunk)) *
                                         chunks.cut.capacity() * chunks.plan.wire.accumulator;
  }

  HostResources& h_;
  InFlight& f_;
  const bool pairs_;  // uneven all_to_all: each pair of ranks has its own length
};

}  // namespace ouro::rt
