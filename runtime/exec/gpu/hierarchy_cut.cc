// Pieces and shares. See hierarchy_cut.h.
#include "runtime/exec/gpu/hierarchy_cut.h"

#include <algorithm>

#include "kernels/host/host_loops.h"
#include "runtime/core/collectives.h"

namespace ouro::rt {
namespace {

std::size_t divided(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

bool HierarchyCut::serves(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::all_gather ||
         c == Collective::broadcast;
}

std::optional<DType> HierarchyCut::wide_of(DType t, OpKind kind) {
  const std::size_t bytes = kernels::accumulator_bytes(t, kind);
  const bool scaled = kind == OpKind::avg || kind == OpKind::premulsum;
  if (bytes == size_of(t) && !(scaled && !is_float(t))) return t;
  if (!is_float(t)) return std::nullopt;
  if (bytes == size_of(DType::f32)) return DType::f32;
  return bytes == size_of(DType::f64) ? std::optional(DType::f64) : std::nullopt;
}

HierarchyCut::HierarchyCut(const Operation& op, int rank, int size, int ranks_of_host)
    : mates(static_cast<std::size_t>(ranks_of_host)), hosts(static_cast<std::size_t>(size / ranks_of_host)) {
  const CollectiveTraits traits = op.traits();
  region = !traits.blocks();
  total = unit_count(op, rank, size);
  type = wide = op.dtype(rank);
  if (op.reduces()) {
    const bool scaled = op.op.kind == OpKind::avg || op.op.kind == OpKind::premulsum;
    wide = wide_of(type, op.op.kind).value_or(type);
    converts = wide != type || scaled;
    kind = scaled ? OpKind::sum : op.op.kind;
  }
  host.elem = wide_size();
  host.in_blocks = traits.in.many() ? hosts : 1, host.out_blocks = traits.out.many() ? hosts : 1;
  constexpr std::size_t kLine = 256;  // where pieces begin, for wide accesses
  const std::size_t unit = region ? mates : 1;
  const std::size_t most =
      region ? kMostPieces
             : std::clamp(StagedCut::kMostCopies / (mates * hosts), std::size_t{1}, kMostPieces);
  const std::size_t least =
      std::max(StagedCut::kPiece / host.elem / (region ? 1 : hosts), divided(divided(total, unit), most));
  const std::size_t share_each = divided(least, kLine) * kLine;
  each = unit * share_each;
  pieces = std::max<std::size_t>(1, divided(total, each));
  if (pieces < StagedCut::kFewest) pieces = 1, each = total;
  const std::size_t last = divided(count(pieces - 1), unit);
  host.pieces = pieces;
  host.each = pieces > 1 ? share_each : last;
  host.total = (pieces - 1) * host.each + last;
}

}  // namespace ouro::rt
