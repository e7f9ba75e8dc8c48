// One launch of an optimiser kernel with everything that it reads and writes, made twice: once for the host's
// half, once for another way to run it. Used by tests of lanes and of PTX.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/kernels/gpu_optim.h"

namespace ouro::gpu {

struct UpdateCase {
  Call call;
  kernels::optim::Layout layout;
  Form form = Form::plain;
  std::size_t ranks = 1;
  std::vector<std::size_t> counts;  ///< one count: a flat run; several: a list
  std::size_t shift = 0;
  bool skip = false;
  bool odd = true;         ///< the values include infinities and the like
  bool in_memory = false;  ///< scales, weights and the matrix are read from device memory
};

/// Everything that one launch reads and writes.
struct UpdateWorld {
  std::vector<Arrays> arrays;  // for each tensor, its ranks side by side
  Control control;
  std::uint32_t skip;
  double matrix[UpdateArgs::kMaxRanks * UpdateArgs::kMaxRanks] = {};
  arith::GradientScale scale[UpdateArgs::kMaxRanks];
  arith::MixWeights weights = {.keep = 0.3, .take = 0.7, .send = 0.35};
  Metadata metadata;
  UpdateArgs args;

  UpdateWorld(const UpdateCase& c, std::uint64_t seed) : skip(c.skip) {
    args = args_of(c.call, c.layout, control);
    args.form = c.form;
    args.ranks = static_cast<int>(c.ranks);
    args.skip = &skip;
    for (std::size_t r = 0; r < c.ranks; ++r) {
      args.scale[r] = scale[r] = {.inverse = 1.0 / static_cast<double>(r + 1), .clip = 0.9};
      for (std::size_t s = 0; s < c.ranks; ++s)
        args.matrix[r][s] = matrix[r * c.ranks + s] =
            (1 + static_cast<double>((3 * r + s) % 5)) / (3.0 * static_cast<double>(c.ranks));
    }
    args.weights = weights;
    if (c.in_memory) args.scale_at = scale, args.weights_at = &weights, args.matrix_at = matrix;
    for (std::size_t t = 0; t < c.counts.size(); ++t)
      for (std::size_t r = 0; r < c.ranks; ++r)
        arrays.emplace_back(c.layout, c.counts[t], (t + r) % 2 == 0 ? c.shift : 0, seed + 10 * t + r, c.odd);
    std::vector<Tensor> records;
    for (Arrays& a : arrays) records.push_back(tensor_of(a));
    if (c.counts.size() == 1)
      std::copy(records.begin(), records.end(), args.one);
    else
      args.list = metadata.lay_out(args, records);
  }
  UpdateWorld(const UpdateWorld&) = delete;

  /// The first difference from a world in which the same launch was made; nullopt if they are equal.
  std::optional<std::string> differs(const UpdateWorld& wanted) const {
    for (std::size_t i = 0; i < arrays.size(); ++i)
      if (!(wanted.arrays[i] == arrays[i])) return "wrong bits in tensor " + std::to_string(i);
    const Control &a = wanted.control, &b = control;
    if (a.step != b.step || a.nonfinite != b.nonfinite || b.pending != 0 || b.ended != 0)
      return "another control word";
    return std::nullopt;
  }
};
inline std::string text_of(const UpdateCase& c) {
  std::string text = std::string(c.call.name) + ", " + kernels::optim::label(c.layout) + ", form " +
                     std::to_string(static_cast<int>(c.form)) + ", ranks " + std::to_string(c.ranks) +
                     (c.skip ? ", skipped" : "") + ", counts";
  for (const std::size_t n : c.counts) text += " " + std::to_string(n);
  return text;
}

}  // namespace ouro::gpu
