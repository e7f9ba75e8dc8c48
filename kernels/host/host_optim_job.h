// The interface of the optimiser loops of one instruction set. Used by host_optim.cc, which chooses among
// them, and by the units that implement them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arith/optim.h"
#include "runtime/core/types.h"

namespace ouro::kernels {

/// Plain data only, for the reason given in host_job.h.
struct OptimJob {
  void* param = nullptr;
  float* master = nullptr;
  const void* grad = nullptr;
  void* state[3] = {};
  const void* neighbours = nullptr;  // null: no mixing, no message
  void* message = nullptr;
  std::size_t count = 0;
  arith::GradientScale scale;
  arith::MixWeights mix;
  arith::Recipe recipe;
};

/// The chains of kernels/arith/optim.h. The first min(blocks, kSurveyChains) of them are initialised.
struct SquareSums {
  double chain[arith::kSurveyChains];
  std::uint64_t blocks = 0;
};

/// Loops for one dtype; each processes `count` elements. `update` and `survey` return whether all gradients
/// were finite; `survey` adds its blocks to the sums.
struct OptimLoops {
  bool (*update)(arith::Update, const OptimJob&);
  void (*mix)(const OptimJob&);
  void (*pack)(const OptimJob&);
  bool (*survey)(const OptimJob&, SquareSums*);
};

/// Null for a dtype that has no optimiser.
const OptimLoops* baseline_optim(DType);
const OptimLoops* avx2_optim(DType);
const OptimLoops* avx512_optim(DType);

}  // namespace ouro::kernels
