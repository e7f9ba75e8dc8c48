// The size of pieces. See staged_cut.h.
#include "runtime/exec/gpu/staged_cut.h"

#include <algorithm>

#include "runtime/core/collectives.h"

namespace ouro::rt {

StagedCut::StagedCut(const Operation& op, int rank, int size) {
  const CollectiveTraits traits = op.traits();
  const auto n = static_cast<std::size_t>(size);
  if (size < 2 || op.uneven || traits.neighbours() || !traits.moves() || !op.segments.empty()) return;
  const std::size_t blocks = traits.blocks() ? n : 1;
  elem = size_of(op.dtype(rank));
  total = unit_count(op, rank, size);
  in_blocks = traits.in.many() ? n : 1, out_blocks = traits.out.many() ? n : 1;
  const std::size_t most = std::min(kMostPieces, kMostCopies / blocks);
  if (most < kFewest) return;
  constexpr std::size_t kLine = 256;  // where pieces begin, for wide accesses
  const std::size_t least = std::max(kPiece / elem / blocks, (total + most - 1) / most);
  each = (least + kLine - 1) / kLine * kLine;
  const std::size_t many = (total + each - 1) / each;
  if (many >= kFewest) pieces = many;
}

}  // namespace ouro::rt
