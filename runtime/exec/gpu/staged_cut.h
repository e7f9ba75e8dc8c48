// How an operation that is staged through the host is cut into pieces. Used by the staged path; a pure
// function of what the signature covers, so that all ranks that agree on a call agree on its pieces.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Piece k is elements [k * each, (k + 1) * each) of the region, or of every block; of an uneven block, those
/// of them that it has.
struct StagedCut {
  /// Bytes of a piece, at least. A copy takes 150 to 340 us at 25 to 55 GB/s, the network 170 to 670 us at 12
  /// to 50 GB/s; the steps of a flow that begins anew, a word and a thread that looks for it some
  /// 50 to 80 us.
  static constexpr std::size_t kPiece = std::size_t{8} << 20;
  /// Pieces that are in pinned memory at a time: one on its way down, one on the network, one on its way up,
  /// and one more for unsteady times.
  static constexpr std::size_t kSlots = 4;
  /// Of one operation. All of them lie in its streams, which hold about a thousand operations.
  static constexpr std::size_t kMostPieces = 64, kMostCopies = 256;
  /// Fewer than these are not worth it.
  static constexpr std::size_t kFewest = 3;

  std::size_t pieces = 1;  ///< 1: not cut
  std::size_t each = 0;   ///< elements of the region or of a block in a piece; of the last one, perhaps fewer
  std::size_t total = 0;  ///< elements of the region, or of a block; of the longest, if they are uneven
  std::size_t elem = 1;   ///< bytes of an element
  std::size_t in_blocks = 1, out_blocks = 1;  ///< of a piece; 1: a region, or this rank's block alone

  std::vector<std::size_t> lengths = {};  ///< of uneven blocks, in elements; empty: blocks are even
  std::size_t own = 0;                    ///< number of this rank's block

  StagedCut() = default;
  /// Of the operation of a rank of `size`. Neighbours' operations are not cut, nor is an uneven all_to_all,
  /// in which no rank knows how many pieces the others would have.
  StagedCut(const Operation&, int rank, int size);

  bool cut() const { return pieces > 1; }
  /// Elements of a block in piece k.
  std::size_t count(std::size_t k) const { return k + 1 < pieces ? each : total - k * each; }
  std::size_t count(std::size_t k, std::size_t block) const {
    return lengths.empty() ? count(k) : std::min(each, lengths[block] - std::min(lengths[block], k * each));
  }
  /// Elements of the input, or the output, in piece k.
  std::size_t in_count(std::size_t k) const { return sum(in_blocks, k); }
  std::size_t out_count(std::size_t k) const { return sum(out_blocks, k); }
  /// Bytes of a slot for the input, or the output, of a piece. No piece has more than the first.
  std::size_t in_bytes() const { return (lengths.empty() ? in_blocks * each : in_count(0)) * elem; }
  std::size_t out_bytes() const { return (lengths.empty() ? out_blocks * each : out_count(0)) * elem; }

  /// Calls f(offset in the piece, offset in the buffer, count) for each block of the input or output of which
  /// piece k has elements, until f returns an error. Elements. `blocks`: in_blocks or out_blocks.
  template <class F>
  Status each_block(std::size_t k, std::size_t blocks, F&& f) const {
    std::size_t within = 0, begin = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::size_t many = count(k, blocks == 1 ? own : b);
      if (many > 0) OURO_TRY(f(within, begin + k * each, many));
      within += many;
      begin += lengths.empty() ? total : lengths[b];
    }
    return {};
  }

 private:
  std::size_t sum(std::size_t blocks, std::size_t k) const {
    if (lengths.empty()) return blocks * count(k);
    if (blocks == 1) return count(k, own);
    std::size_t all = 0;
    for (std::size_t b = 0; b < blocks; ++b) all += count(k, b);
    return all;
  }
};

}  // namespace ouro::rt
