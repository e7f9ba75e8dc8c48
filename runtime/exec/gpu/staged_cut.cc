// The size of pieces. See staged_cut.h.
#include "runtime/exec/gpu/staged_cut.h"

#include <algorithm>
#include <numeric>

#include "runtime/core/collectives.h"

namespace ouro::rt {

StagedCut::StagedCut(const Operation& op, int rank, int size) {
  const CollectiveTraits traits = op.traits();
  const auto n = static_cast<std::size_t>(size);
  if (size < 2 || traits.neighbours() || !traits.moves() || !op.segments.empty()) return;
  if (op.uneven_pairs()) return;
  const std::size_t blocks = traits.blocks() ? n : 1;
  elem = size_of(op.dtype(rank));
  total = unit_count(op, rank, size);
  own = static_cast<std::size_t>(rank);
  if (op.uneven) {
    const auto& counts = op.in_counts.empty() ? op.out_counts : op.in_counts;
    lengths.assign(counts.begin(), counts.end());
    total = *std::ranges::max_element(lengths);
  }
  in_blocks = traits.in.many() ? n : 1, out_blocks = traits.out.many() ? n : 1;
  const std::size_t most = std::min(kMostPieces, kMostCopies / blocks);
  if (most < kFewest) return;
  constexpr std::size_t kLine = 256;  // where pieces begin, for wide accesses
  // Of uneven blocks the longest has a part in every piece, and the pieces have kPiece bytes on average.
  const auto longest_piece = [&] {
    const std::size_t all = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
    const std::size_t by_bytes = std::max<std::size_t>(all / (kPiece / elem), 1);
    return (total + by_bytes - 1) / by_bytes;
  };
  const std::size_t wanted = op.uneven ? longest_piece() : kPiece / elem / blocks;
  const std::size_t least = std::max(wanted, (total + most - 1) / most);
  each = (least + kLine - 1) / kLine * kLine;
  const std::size_t many = (total + each - 1) / each;
  if (many < kFewest) return;
  // The first piece has all of each short block: slots for it may need more memory than the whole.
  std::size_t first = 0, whole = 0;
  for (const std::size_t length : lengths) first += std::min(each, length), whole += length;
  if (kSlots * first > 2 * whole) return;
  pieces = many;
}

}  // namespace ouro::rt
