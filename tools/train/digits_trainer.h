// Data-parallel training of the digits perceptron over any number of ranks, as a function.
// Used by ouro-train and its tests.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "api/include/ouro/ouro.hpp"

namespace ouro::tools {

struct TrainOptions {
  int steps = 240;
  int batch = 64;  ///< rows a step, over all ranks together
  double lr = 0.2;
  double momentum = 0.9;
  DType dtype = DType::f32;  ///< of parameters, arithmetic and the all-reduced gradients: f32 or f64
  Numerics numerics = Numerics::inherit;
  /// Parameters, gradients, all-reduce and optimiser on the rank's GPU; the network's arithmetic stays on the
  /// host.
  bool device = false;
  std::uint32_t seed = 0;  ///< order of the training rows; 0: the order of the data set itself
  /// Called after each step with the step's number (from 0) and its mean loss.
  std::function<void(int step, double loss)> on_step = {};
};

struct TrainReport {
  std::vector<double> losses;  ///< mean loss over the global batch, before the update of each step
  std::int64_t correct = 0;    ///< test rows classified right after the last step
  std::int64_t test_rows = 0;
  double seconds = 0;  ///< of the steps; without loading and evaluation
  int ranks = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(test_rows); }
};

/// Row of the shuffled data set that sample k of step t is: (t * batch + k) mod the number of training rows,
/// through `order`. Independent of the number of ranks; rank r of n computes samples r, r+n, r+2n, ...
std::vector<std::uint32_t> rows_of_step(const std::vector<std::uint32_t>& order, int step, int batch,
                                        int rank, int ranks);

/// Collective over the context's world group; options must agree on all ranks. The report is the same on all
/// ranks, up to `seconds`. Errors: invalid (options, data file), else those of all_reduce.
///
/// Each step all-reduces (sum) one flat buffer [sum of gradients, sum of losses], divides by the batch and
/// applies SGD with momentum. Losses for different numbers of ranks differ by rounding alone: a rank adds its
/// rows in double and rounds its sum once to `dtype`. Losses on a device are those on the host, bit for bit,
/// if the batch is a power of two and the all-reduce gives equal bits (canonical numerics do); else they
/// differ by rounding.
Result<TrainReport> train_digits(Context&, const TrainOptions&);

}  // namespace ouro::tools
