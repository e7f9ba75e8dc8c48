// The link executor: flows whose ranks pass messages on. Used through run_flow.h.
#pragma once
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

/// Carries out the hops of one operation over the slots of links; sums that are not done lie in accumulators.
class LinkExecutor {
 public:
  LinkExecutor(HostResources& h, InFlight& f, const FlowPlan& flow)
      : chunks(f, flow, h.scratch),
        h_(h),
        f_(f),
        pairs_(chunks.op.uneven && chunks.op.collective == Collective::all_to_all) {}
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
  void accumulate(const flow::Step&);  ///< without a message
  /// What has come, in its element type or a product: mine + weight * got.
  void mix(const flow::Step&, Extent in, Extent out, const std::byte* got, std::size_t count);
  /// What has come, in the accumulation type.
  void combine(const flow::Step&, Extent in, Extent out, const std::byte* got, std::byte* slot,
               std::size_t count);
  Status await_message(LinkEnd&, int from, std::size_t bytes, std::size_t total);
  Status await(const LinkEnd&, Counter&, std::uint64_t at_least, InFlight::Awaited);
  Status await_room(LinkEnd&, int rank);
  void publish_message(LinkEnd&, const flow::Step&, std::size_t count, std::size_t total);
  std::size_t message_bytes(std::uint32_t wide, std::size_t count) const {
    return count * (wide ? chunks.plan.acc_bytes : chunks.plan.elem);
  }
  /// Uneven pairs run for different numbers of rounds: both ends know that an empty piece does not travel.
  bool skipped(std::size_t count) const { return pairs_ && chunks.round > 0 && count == 0; }
  /// Pipelined flows share one: they end one chunk before they begin the next (kernels/flow/traits.h).
  std::byte* accumulator(int chunk) {
    return h_.scratch.bytes.data() + (chunks.cut.pipelined() ? 0 : static_cast<std::size_t>(chunk)) *
                                         chunks.cut.capacity() * chunks.plan.acc_bytes;
  }

  HostResources& h_;
  InFlight& f_;
  const bool pairs_;  // uneven: each pair of ranks has a length of its own
};

}  // namespace ouro::rt
