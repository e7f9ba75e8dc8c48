// Optimiser steps on the host, fused into one pass over flat arrays: 28 bytes per parameter for AdamW in
// fp32. Used by the trainers and by tests; kernels/arith/optim.h defines the arithmetic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/arith/optim.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::kernels {

using arith::AdamOptions;
using arith::GradientScale;
using arith::MixWeights;
using arith::SgdOptions;

/// A flat run of parameters: f64, f32, bf16 or f16. Arithmetic and state are fp64 for f64, else fp32. A
/// 16-bit run may have a master copy in fp32; then updates go to the master, and `value` is the rounded
/// master. Arrays have `count` elements, any alignment, and do not overlap. The gradient is not modified.
struct Parameters {
  DType dtype = DType::f32;
  void* value = nullptr;
  const void* gradient = nullptr;  // of dtype
  float* master = nullptr;         // 16-bit types only
  std::size_t count = 0;
};

/// Mixing, in the pass of the update: value <- keep*value + take*neighbours, update, message <- send*value.
/// Both arrays are of the parameters' dtype and may be the same one. If there is a master, it takes the place
/// of the value.
struct Exchange {
  const void* neighbours = nullptr;
  void* message = nullptr;
  MixWeights weights;
};

/// Additional work in the pass of an update: scaling of gradients, and mixing.
struct Fused {
  GradientScale scale;
  const Exchange* exchange = nullptr;
};

/// Whether all gradients were finite after scaling. If one was not, its parameter and state are treated as if
/// there had been no gradient: mixed, but neither decayed nor moved nor accumulated. To skip a whole step
/// instead (a loss scaler), survey first, agree with the other ranks, and call `mix` and `pack` in place of
/// the update.
struct Report {
  bool finite = true;
};

// `step` counts a parameter's steps from 1, including this one. All functions fail with `invalid` on types,
// options, counts or null arrays that do not fit, before anything is written. Threads may update different
// runs at once.

/// `momentum` may be null if options.momentum is 0; step 1 writes it without reading it.
Result<Report> sgd(const Parameters&, void* momentum, const SgdOptions&, std::int64_t step,
                   const Fused& = {});

/// Adam, or with options.decoupled AdamW. Both states are zero before step 1.
Result<Report> adam(const Parameters&, void* exp_avg, void* exp_avg_sq, const AdamOptions&, std::int64_t step,
                    const Fused& = {});

struct AccumAdamOptions {
  AdamOptions adam;
  int accum_iter = 4;     // K
  bool lazy_zero = true;  // same bits in all arrays, except an accumulator that counts as zero
};
/// AccumAdam or AccumAdamW. The states are zero before step 1. With lazy_zero, the accumulator may hold
/// anything at that time and whenever `accumulator_is_zero`; a checkpoint for other readers must store
/// zeros there.
Result<Report> accum_adam(const Parameters&, void* exp_avg, void* exp_avg_sq, void* accum_grad,
                          const AccumAdamOptions&, std::int64_t step, const Fused& = {});

/// Whether the accumulator counts as zero after `step` steps.
constexpr bool accumulator_is_zero(std::int64_t step, int accum_iter) { return step % accum_iter == 0; }

/// The mixing alone, and the message alone. With the plain update between them they give the same bits as the
/// fused update.
Status mix(const Parameters&, const Exchange&);
Status pack(const Parameters&, const Exchange&);

/// One read-only pass over the gradients, as they are after scaling: what a loss scaler and clipping must
/// know before the update. Squares are summed in fp64 in an order that depends on the count alone, not on
/// the processor.
struct Survey {
  bool finite = true;
  double squares = 0;  // infinite or NaN if not finite
};
Result<Survey> survey(DType, const void* gradient, std::size_t count, const GradientScale& = {});
/// One survey over the gradients of a list of tensors.
struct Gradient {
  const void* data = nullptr;
  std::size_t count = 0;
};
Result<Survey> survey(DType, std::span<const Gradient>, const GradientScale& = {});

}  // namespace ouro::kernels
