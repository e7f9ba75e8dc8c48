// Runs optimiser kernels through their host halves, block by block, on the cases of optim_cases.h. Used by
// the tests of the optimiser kernels.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/gpu/optim.h"
#include "tests/kernels/optim_cases.h"

namespace ouro::gpu {

using kernels::optim::Arrays;
using kernels::optim::Bytes;
using kernels::optim::Call;
using kernels::optim::kLayouts;

/// Runs all blocks of a launch, the last one first: no block may depend on the end of another.
inline void run(const Launch& launch, const void* args) {
  for (int b = launch.shape.blocks - 1; b >= 0; --b) launch.kernel->host(args, b, launch.shape.blocks);
}

inline Family family_of(arith::Update u) {
  if (u <= arith::Update::sgd_momentum) return Family::sgd;
  return u == arith::Update::adam ? Family::adam : Family::accum_adam;
}

inline Tensor tensor_of(Arrays& a) {
  const kernels::Parameters p = a.parameters();
  return {.value = p.value,
          .gradient = p.gradient,
          .master = p.master,
          .state = {a.at(a.state[0]), a.at(a.state[1]), a.at(a.state[2])},
          .neighbours = a.at(a.neighbours),
          .message = a.at(a.message),
          .count = a.count};
}

/// The launch that corresponds to `kernels::optim::perform`. Sets `control` to the step before.
inline UpdateArgs args_of(const Call& c, kernels::optim::Layout layout, Control& control) {
  control.step = c.recipe.step - 1;
  control.lr = c.update <= arith::Update::sgd_momentum ? c.recipe.sgd.lr : c.recipe.adam.lr;
  UpdateArgs args{.family = family_of(c.update),
                  .dtype = layout.dtype,
                  .master = layout.master,
                  .lazy_zero = c.lazy_zero,
                  .recipe = c.recipe,
                  .control = &control};
  // The step and rate in device memory must be used, not these.
  args.recipe.step = -7;
  args.recipe.sgd.lr = args.recipe.adam.lr = 99;
  return args;
}

/// Launches once; returns whether all gradients were finite.
inline bool launch_update(const UpdateArgs& args, int multiprocessors = 1) {
  const Result<Launch> launch = update(args, multiprocessors);
  EXPECT_TRUE(launch.ok()) << launch.status().message();
  if (!launch.ok()) return false;
  EXPECT_EQ(launch->kernel->arg_bytes, sizeof args);
  run(*launch, &args);
  EXPECT_EQ(args.control->pending, 0u);
  EXPECT_EQ(args.control->ended, 0u);
  return args.control->nonfinite == 0;
}

/// Storage for a list's metadata.
class Metadata {
 public:
  List lay_out(const UpdateArgs& kind, const std::vector<Tensor>& tensors) {
    room_.assign(list_bytes(tensors, kind.ranks) / sizeof(Tensor) + 1, Tensor{});
    auto* const at = reinterpret_cast<std::byte*>(room_.data());
    const Result<List> list = gpu::lay_out(kind, tensors, at, at);
    EXPECT_TRUE(list.ok()) << list.status().message();
    return list.ok() ? *list : List{};
  }

 private:
  std::vector<Tensor> room_;
};

}  // namespace ouro::gpu
