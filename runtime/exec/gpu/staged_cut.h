// How an operation that is staged through the host is cut into pieces. Used by the staged path; a pure
// function of what the signature covers, so that all ranks that agree on a call agree on its pieces.
#pragma once
#include <cstddef>
#include <vector>

#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Piece k is elements [k * each, (k + 1) * each) of the region, or of every block.
struct StagedCut {
  /// Bytes of a piece, at least. A copy takes 150 to 340 us at 25 to 55 GB/s, the network 170 to 670 us at 12
  /// to 50 GB/s; the steps of a flow that begins anew, a word and a thread that looks for it some 50 to 80
  /// us.
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
  std::size_t total = 0;  ///< elements of the region, or of a block
  std::size_t elem = 1;   ///< bytes of an element
  std::size_t in_blocks = 1, out_blocks = 1;  ///< of a piece; 1: a region, or this rank's block alone

  StagedCut() = default;
  /// Of the operation of a rank of `size`. Uneven operations and neighbours' are not cut.
  StagedCut(const Operation&, int rank, int size);

  bool cut() const { return pieces > 1; }
  /// Elements of a block in piece k.
  std::size_t count(std::size_t k) const { return k + 1 < pieces ? each : total - k * each; }
  /// Bytes of a slot for the input, or the output, of a piece.
  std::size_t in_bytes() const { return in_blocks * each * elem; }
  std::size_t out_bytes() const { return out_blocks * each * elem; }
};

}  // namespace ouro::rt
