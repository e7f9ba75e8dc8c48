// The parts from which collect_host.cc and the .cu files of this folder build the kernels of collect.h: the
// bodies, the hot reductions, and the table of device entries that connects the two sides.
#pragma once
#include "kernels/gpu/fused_body.h"
#include "kernels/gpu/gather_body.h"
#include "kernels/gpu/hop_body.h"
#include "kernels/gpu/meet_body.h"

namespace ouro::gpu::collect {

/// Blocks that are resident on a multiprocessor at once (hence 80 registers per thread); no more
/// are launched.
inline constexpr int kResidentBlocks = 3;

// The hot reductions: X(DType, OpKind), the pairs with kernels of their own; fused ones for 2, 4, 8 and any
// number of ranks.

#define OURO_HOT_REDUCTIONS(X) X(f32, sum) X(f32, avg) X(bf16, sum) X(bf16, avg) X(f16, sum) X(f16, avg)
#define OURO_X(t, op) +1
inline constexpr int kHotReductions = 0 OURO_HOT_REDUCTIONS(OURO_X);
#undef OURO_X
inline constexpr int kHotRanks[] = {2, 4, 8, 0};

/// A fused body, and what its launch writes at its end.
template <class Block, void (*kBody)(const FusedArgs&, const Block&)>
OURO_HD void fused_launch(const FusedArgs& a, const Block& at) {
  kBody(a, at);
  end_launch(a.end, at, a.end.finished.word != nullptr && stopped(a.stop));
}

/// The device entries; nullptr in builds without a CUDA compiler.
struct Entries {
  const void* fused_move = nullptr;
  const void* fused_generic = nullptr;
  const void* hop_move = nullptr;
  const void* hop_generic = nullptr;
  const void* gather_runs = nullptr;
  const void* meet = nullptr;
  const void* fused_hot[kHotReductions][4] = {};
  const void* hop_hot[kHotReductions] = {};
};
Entries device_entries();
const void* fused_generic_entry();
const void* hop_generic_entry();

}  // namespace ouro::gpu::collect
