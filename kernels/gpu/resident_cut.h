// How the resident executor cuts an operation: which elements a channel has, and which of them a chunk is.
// The same rules as the host executor's. Used by resident_body.h.
#pragma once
#include "kernels/flow/traits.h"
#include "kernels/gpu/resident.h"
#include "runtime/core/hd.h"

namespace ouro::gpu {

/// The share of channel `c` of `count` elements: [first, first + count), cut at multiples of 128 bytes.
struct ResidentShare {
  std::uint64_t first, count;
};
OURO_HD ResidentShare resident_share(std::uint64_t count, int channels, int c, std::uint64_t element) {
  const std::uint64_t line = ResidentLayout::kLine / element, n = static_cast<std::uint64_t>(channels);
  const std::uint64_t share = ((count + n - 1) / n + line - 1) / line * line;
  const std::uint64_t first = static_cast<std::uint64_t>(c) * share;
  if (first >= count) return {count, 0};
  return {first, count - first < share ? count - first : share};
}

/// All in elements, of one channel.
struct ResidentCut {
  struct Extent {
    std::uint64_t offset, count;
  };
  bool blocks = false, in_blocks = false, out_blocks = false, pipelined = false;
  int per_round = 1, rounds = 1;
  int turn = 0;                        // the round at hand, where the flow is called once a round
  std::uint64_t block = 0;             // from one block to the next
  std::uint64_t first = 0, total = 0;  // this channel's share of the region, or of each block
  std::uint64_t capacity = 1;          // of one chunk in one round, at most
  std::uint64_t piece = 1;             // a chunk of a region
  std::uint64_t stride_bytes = 0;      // between the pieces of a post
  int result_piece = 0;                // where the result of a round lies

  OURO_HD static std::uint64_t round_up(std::uint64_t x, std::uint64_t unit) {
    return (x + unit - 1) / unit * unit;
  }
  OURO_HD static std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

  template <class Flow>
  OURO_HD void cut(const ResidentArgs& a, Collective collective, int channel, std::uint64_t element,
                   std::uint64_t accumulator) {
    constexpr std::uint64_t kLine = ResidentLayout::kLine;
    const int n = a.layout.ranks;
    blocks = collective == Collective::reduce_scatter || collective == Collective::all_gather ||
             collective == Collective::gather || collective == Collective::scatter ||
             collective == Collective::all_to_all;
    in_blocks = blocks && collective != Collective::all_gather && collective != Collective::gather;
    out_blocks = blocks && collective != Collective::reduce_scatter && collective != Collective::scatter;
    pipelined = Flow::kPipelined;
    block = collective == Collective::barrier ? 0 : a.count;
    const ResidentShare share = resident_share(block, a.channels, channel, element);
    first = share.first;
    total = share.count;
    per_round = Flow{}.chunks({a.rank, n, a.root, 1});
    const auto chunks = static_cast<std::uint64_t>(per_round);
    const std::uint64_t line = kLine / element;
    if (n == 1 || Flow::kByReference) {
      capacity = blocks ? total : round_up((total + chunks - 1) / chunks, line);
    } else if (Flow::kStaging) {
      result_piece = Flow::kPostsOthers ? n - 1 : 1;
      const auto pieces = static_cast<std::uint64_t>(result_piece + Flow::kPostsResult);
      stride_bytes = a.layout.staging_bytes / pieces / kLine * kLine;
      capacity = stride_bytes / element;
    } else {
      capacity = a.layout.slot_bytes / (element > accumulator ? element : accumulator) / line * line;
    }
    if (capacity == 0) capacity = 1;
    const std::uint64_t at_once = blocks ? capacity : chunks * capacity;
    const std::uint64_t many = total <= at_once ? 1 : (total + at_once - 1) / at_once;
    rounds = static_cast<int>(many);
    piece =
        blocks ? capacity : least(capacity, round_up((total + chunks * many - 1) / (chunks * many), line));
  }

  OURO_HD std::uint64_t round_of(int chunk) const {
    return static_cast<std::uint64_t>(pipelined ? chunk / per_round : turn);
  }
  OURO_HD int within_round(int chunk) const { return pipelined ? chunk % per_round : chunk; }
  OURO_HD Extent in(int chunk) const {
    return blocks ? block_extent(chunk, in_blocks) : region_extent(chunk);
  }
  OURO_HD Extent out(int chunk) const {
    return blocks ? block_extent(chunk, out_blocks) : region_extent(chunk);
  }

 private:
  OURO_HD Extent block_extent(int chunk, bool many) const {
    const std::uint64_t begin = many ? static_cast<std::uint64_t>(within_round(chunk)) * block : 0;
    const std::uint64_t skip = least(total, round_of(chunk) * capacity);
    return {begin + first + skip, least(total - skip, capacity)};
  }
  OURO_HD Extent region_extent(int chunk) const {
    const int i = pipelined ? chunk : turn * per_round + chunk;
    const std::uint64_t skip = least(total, static_cast<std::uint64_t>(i) * piece);
    return {first + skip, least(total - skip, piece)};
  }
};

}  // namespace ouro::gpu
