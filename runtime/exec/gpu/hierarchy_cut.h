// How an operation between hosts is cut for the hierarchy of GPUs: what of a piece is each rank's share, and
// which operation the ranks of equal index on all hosts run with it. Used by the hierarchy path; a pure
// function of what the signature covers and of where ranks lie.
#pragma once
#include <algorithm>
#include <cstddef>
#include <optional>

#include "runtime/exec/gpu/staged_cut.h"
#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Piece k is elements [at(k), at(k) + count(k)) of the region, or of every block. Of a region each rank of a
/// host has a share, the last ones a shorter one or none; of blocks it has those of the ranks of its index.
struct HierarchyCut {
  /// Of one operation: two of them are less than what ranks may be apart (GpuWords::kArrivals).
  static constexpr std::size_t kMostPieces = 16;
  /// Bytes of this rank's share of blocks that are not cut.
  static constexpr std::size_t kUncut = StagedCut::kFewest * StagedCut::kPiece;

  static bool serves(Collective);
  /// The element type of partial results between GPUs and between hosts; none, if no type holds them.
  static std::optional<DType> wide_of(DType, OpKind);

  std::size_t mates = 1, hosts = 1;  ///< ranks of a host, hosts
  std::size_t pieces = 1;
  std::size_t each = 0;   ///< elements of the region or of a block in a piece; of the last one, perhaps fewer
  std::size_t total = 0;  ///< elements of the region, or of a block
  DType type = DType::f32, wide = DType::f32;  ///< of the buffers; of partial results
  bool region = true;                          ///< or blocks
  bool converts = false;                       ///< inputs are not summed up as they are
  OpKind kind = OpKind::sum;                   ///< of sums of partial results
  /// Pieces of the operation between hosts: shares, in type `wide`.
  StagedCut host;

  /// Of the operation of a rank of `size`, `mates` of them on each host.
  HierarchyCut(const Operation&, int rank, int size, int mates);

  /// Whether what it needs of the device's memory is a part of what the operation moves, or little. Over
  /// blocks of many ranks pieces are few.
  bool small() const { return region || pieces > 1 || share(0) * hosts * wide_size() <= kUncut; }
  /// What one operation takes of StagedPieces::kRoom: its pieces, or more if a piece is many copies.
  std::size_t room() const { return std::max(pieces, region ? 0 : pieces * mates * hosts / 16); }
  std::size_t at(std::size_t k) const { return k * each; }
  std::size_t count(std::size_t k) const { return k + 1 < pieces ? each : total - k * each; }
  /// Elements of a block of piece k between hosts.
  std::size_t share(std::size_t k) const { return host.count(k); }
  /// Whether the shares of a piece are more than the piece.
  bool padded(std::size_t k) const { return region && mates * share(k) != count(k); }
  std::size_t size() const { return size_of(type); }
  std::size_t wide_size() const { return size_of(wide); }
};

}  // namespace ouro::rt
