// Chunks: folds and copies. See chunks.h.
#include "runtime/exec/host/chunks.h"

namespace ouro::rt {

void Chunks::fold(std::byte* out, std::size_t count) const {
  Scratch& s = scratch_;
  if (!streams) {
    plan.fold(out, s.sources, s.factors, count);
    return;
  }
  // Copies through a tile that fits into the L1 cache.
  const std::size_t block = std::max<std::size_t>(1, Scratch::kTile / plan.elem);
  for (std::size_t from = 0; from < count; from += block) {
    const std::size_t some = std::min(block, count - from);
    plan.fold(s.tile, s.sources, s.factors, some);
    kernels::copy_stream(out + from * plan.elem, s.tile, some * plan.elem);
    for (const void*& source : s.sources) source = static_cast<const std::byte*>(source) + some * plan.elem;
  }
}

void Chunks::local(const flow::Step& s) const {
  const Extent from = in(s.chunk), to = out(s.chunk);
  if (s.verb & flow::kPartialIn) {  // a reduction over one rank
    const void* const source = in_at(from);
    kernels::fold(plan.reduction, out_at(to), {&source, 1}, {&plan.reduction.premul, 1}, to.count);
  } else if (op.blocks()) {
    deliver(out_at(to), in_at(from), to.count * plan.elem);
  } else {
    parts(to, [&](const std::byte* in, std::byte* out, std::size_t, std::size_t count) {
      deliver(out, in, count * plan.elem);
    });
  }
}

}  // namespace ouro::rt
