// How the resident executor cuts an operation: a channel's share of it, by the geometry that all executors
// share. Used by resident_body.h and resident_packets.h.
#pragma once
#include "kernels/flow/geometry.h"
#include "kernels/flow/traits.h"
#include "kernels/gpu/resident.h"
#include "runtime/core/collectives.h"

namespace ouro::gpu {

/// The share of channel `c` of `count` elements.
OURO_HD flow::Extent resident_share(std::uint64_t count, int channels, int c, std::uint64_t element) {
  return flow::share_of(count, channels, c, ResidentLayout::kLine / element);
}

/// The cut of one channel's share of the region, or of each block; all in elements.
struct ResidentCut : flow::Cut {
  using Extent = flow::Extent;
  int turn = 0;  // the current round, if the flow is called once per round
  bool in_blocks = false, out_blocks = false;
  std::uint64_t block = 0;         // distance from one block to the next
  std::uint64_t first = 0;         // start of the share within the region, or within each block
  std::uint64_t stride_bytes = 0;  // distance between the pieces of a post
  int result_piece = 0;            // index of the piece that holds the result of a round

  template <class Flow>
  OURO_HD void cut(const ResidentArgs& a, Collective collective, int channel, std::uint64_t element,
                   std::uint64_t accumulator) {
    constexpr std::uint64_t kLine = ResidentLayout::kLine;
    const CollectiveTraits traits = traits_of(collective);
    const int n = a.layout.ranks;
    in_blocks = traits.in.many(), out_blocks = traits.out.many();
    block = traits.moves() ? a.count : 0;
    const Extent share = resident_share(block, a.channels, channel, element);
    first = share.offset;
    total = share.count;
    blocks = traits.blocks();
    pipelined = Flow::kPipelined;
    per_round = Flow{}.chunks({a.rank, n, a.root, 1});
    const std::uint64_t line = kLine / element;
    if (n == 1 || Flow::kByReference) {
      capacity = in_one_round(blocks, total, per_round);
      if (!blocks) capacity = flow::round_up(capacity, line);
    } else if (Flow::kSwitched) {  // one piece per rank, of which each rank posts or reduces one
      stride_bytes = a.layout.staging_bytes / (Flow::kRooted ? 1u : static_cast<unsigned>(n)) / kLine * kLine;
      capacity = stride_bytes / element;
    } else if (Flow::kStaging) {
      result_piece = flow::input_pieces(Flow::kPostsOthers, n);
      const auto pieces = static_cast<std::uint64_t>(result_piece + Flow::kPostsResult);
      stride_bytes = a.layout.staging_bytes / pieces / kLine * kLine;
      capacity = stride_bytes / element;
    } else {
      capacity = a.layout.slot_bytes / (element > accumulator ? element : accumulator) / line * line;
    }
    if (capacity == 0) capacity = 1;
    Cut::cut(line);
  }

  OURO_HD int round_of(int chunk) const { return Cut::round_of(chunk, turn); }
  OURO_HD Extent in(int chunk) const { return of(in_blocks, chunk); }
  OURO_HD Extent out(int chunk) const { return of(out_blocks, chunk); }

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

}  // namespace ouro::gpu
