// How the resident executor cuts an operation: a channel's share of it, by the geometry that all executors
// share. Used by resident_body.h and resident_packets.h.
#pragma once
#include "kernels/flow/geometry.h"
#include "kernels/flow/traits.h"
#include "kernels/gpu/resident.h"
#include "runtime/core/collectives.h"

namespace ouro::gpu {

/// The properties of a flow on which the cut of an operation depends.
struct FlowShape {
  bool pipelined, by_reference, switched, rooted, staging, posts_others, posts_result;
};
template <class Flow>
OURO_HD constexpr FlowShape shape_of() {
  return {Flow::kPipelined, Flow::kByReference, Flow::kSwitched,   Flow::kRooted,
          Flow::kStaging,   Flow::kPostsOthers, Flow::kPostsResult};
}

/// The share of channel `c` of `count` elements.
OURO_HD flow::Extent resident_share(std::uint64_t count, int channels, int c, std::uint64_t element) {
  return flow::share_of(count, channels, c, ResidentLayout::kLine / element);
}

/// The cut of one channel's share of the region, or of each block; all in elements. Blocks have
/// equal lengths.
struct ResidentCut : flow::Cut {
  using Extent = flow::Extent;
  static constexpr bool kUneven = false;
  int turn = 0;  // the current round, if the flow is called once per round
  bool in_blocks = false, out_blocks = false;
  std::uint64_t block = 0;         // distance from one block to the next
  std::uint64_t first = 0;         // start of the share within the region, or within each block
  std::uint64_t stride_bytes = 0;  // distance between the pieces of a post
  int result_piece = 0;            // index of the piece that holds the result of a round

  /// `chunks`: of one round.
  OURO_HD void cut(FlowShape flow, int chunks, const ResidentArgs& a, Collective collective, int channel,
                   std::uint64_t element, std::uint64_t accumulator) {
    const CollectiveTraits traits = traits_of(collective);
    in_blocks = traits.in.many(), out_blocks = traits.out.many();
    block = traits.moves() ? a.count : 0;
    const Extent share = resident_share(block, a.channels, channel, element);
    first = share.offset;
    total = share.count;
    blocks = traits.blocks();
    chop(flow, chunks, a, element, accumulator);
  }

  OURO_HD int round_of(int chunk) const { return Cut::round_of(chunk, turn); }
  OURO_HD Extent in(int chunk) const { return of(in_blocks, chunk); }
  OURO_HD Extent out(int chunk) const { return of(out_blocks, chunk); }
  /// The place of chunk `at` of another rank's input, relative to in_of of that rank. It becomes chunk
  /// `chunk` of this rank's output, whose place is `mine`.
  OURO_HD Extent theirs(int /*chunk*/, int at, Extent /*mine*/) const { return in(at); }
  /// Whether a chunk is not sent over a link at all. Both ends compute the same answer.
  OURO_HD bool skips(const flow::Step&) const { return false; }

 protected:
  /// Cuts into rounds and chunks, once `total` and `blocks` are known.
  OURO_HD void chop(FlowShape flow, int chunks, const ResidentArgs& a, std::uint64_t element,
                    std::uint64_t accumulator) {
    constexpr std::uint64_t kLine = ResidentLayout::kLine;
    const int n = a.layout.ranks;
    pipelined = flow.pipelined;
    per_round = chunks;
    const std::uint64_t line = kLine / element;
    if (n == 1 || flow.by_reference) {
      capacity = in_one_round(blocks, total, per_round);
      if (!blocks) capacity = flow::round_up(capacity, line);
    } else if (flow.switched) {  // one piece per rank, of which each rank posts or reduces one
      stride_bytes = a.layout.staging_bytes / (flow.rooted ? 1u : static_cast<unsigned>(n)) / kLine * kLine;
      capacity = stride_bytes / element;
    } else if (flow.staging) {
      result_piece = flow::input_pieces(flow.posts_others, n);
      const auto pieces = static_cast<std::uint64_t>(result_piece + flow.posts_result);
      stride_bytes = a.layout.staging_bytes / pieces / kLine * kLine;
      capacity = stride_bytes / element;
    } else {
      capacity = a.layout.slot_bytes / (element > accumulator ? element : accumulator) / line * line;
    }
    if (capacity == 0) capacity = 1;
    Cut::cut(line);
  }

 private:
  OURO_HD Extent of(bool many, int chunk) const {
    if (!blocks) {
      const Extent e = region(chunk, turn);
      return {first + e.offset, e.count};
    }
    const std::uint64_t begin = many ? static_cast<std::uint64_t>(within_round(chunk)) * block : 0;
    return Cut::block_part(begin + first, total, chunk, turn);
  }
};

/// The same for blocks of any lengths. A channel has a share of each block. The cut of a block depends on its
/// length only, so two ranks cut the block that one sends to the other alike.
struct UnevenCut : ResidentCut {
  static constexpr bool kUneven = true;
  const ResidentArgs* args = nullptr;
  const std::uint64_t *in_begin = nullptr, *out_begin = nullptr;  // first element of each block
  int channel = 0;
  std::uint64_t element = 1;
  bool pairs = false;  // all_to_all: each pair of ranks has a length, and no rank knows all of them

  OURO_HD void cut(FlowShape flow, int chunks, const ResidentArgs& a, Collective collective, int of_channel,
                   std::uint64_t bytes, std::uint64_t accumulator) {
    const CollectiveTraits traits = traits_of(collective);
    args = &a, channel = of_channel, element = bytes;
    pairs = collective == Collective::all_to_all;
    in_blocks = traits.in.many(), out_blocks = traits.out.many();
    blocks = true;
    total = resident_share(a.count, a.channels, 0, element).count;  // no channel's share of a block is longer
    chop(flow, chunks, a, element, accumulator);
  }

  OURO_HD Extent in(int chunk) const {
    const int b = within_round(chunk);
    return part(in_blocks ? in_begin[b] : 0, args->in_counts[b], chunk);
  }
  OURO_HD Extent out(int chunk) const {
    const int b = within_round(chunk);
    return part(out_blocks ? out_begin[b] : 0, args->out_counts[b], chunk);
  }
  /// For an all_to_all, in_of is the address of the block for this rank.
  OURO_HD Extent theirs(int chunk, int at, Extent mine) const {
    return pairs ? Extent{mine.offset - out_begin[within_round(chunk)], mine.count} : in(at);
  }
  template <class S>
  OURO_HD bool skips(const S& s) const {
    return pairs && (s.verb & flow::kInput ? in(s.chunk) : out(s.chunk)).count == 0;
  }

 private:
  OURO_HD Extent part(std::uint64_t begin, std::uint64_t count, int chunk) const {
    const Extent share = resident_share(count, args->channels, channel, element);
    return Cut::block_part(begin + share.offset, share.count, chunk, turn);
  }
};

}  // namespace ouro::gpu
