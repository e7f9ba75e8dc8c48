// One rank's part in a training run: network, samples, memory; and what all ranks find out together.
// Used by the strategies of ouro-train.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "ouro/train/param.hpp"
#include "tools/models/network.h"
#include "tools/train/options.h"

namespace ouro::tools {

/// The samples first, first + stride, ... of the training set in its order, over and over.
class Pool {
 public:
  /// One sample at least: first < samples. seed 0: the data set's own order.
  Pool(std::uint32_t samples, std::uint32_t seed, int first, int stride);
  std::uint32_t operator[](std::int64_t i) const {
    return order_[static_cast<std::size_t>(i) % order_.size()];
  }

 private:
  std::vector<std::uint32_t> order_;
};

class Task {
 public:
  /// Collective over the world group: all ranks have their data, or all get an error. `o`: settled.
  static Result<Task> make(Context&, const TrainOptions& o);

  models::Network& network() { return *network_; }
  const models::Network& network() const { return *network_; }
  /// Values at their start and gradients, in memory of this object; trainers may take both elsewhere.
  std::vector<train::Param> params();
  std::vector<train::Buffer> buffers();
  /// At the values of `at`, a list like that of `params`: writes factor times the gradient of the samples'
  /// mean loss to its gradients, and returns that loss. No samples: zeros, 0.
  double gradients(std::span<const train::Param> at, std::span<const std::uint32_t> samples, double factor);
  /// All values of the list, one after the other.
  std::vector<double> flat(std::span<const train::Param> at);

  /// Collective. Tests the model of values `at`, equal on all ranks, with the mean of the ranks' statistics.
  Status test(Group& world, std::span<const train::Param> at, TrainReport&);
  /// What `gradients` moves besides gradients: to save, and to go on from.
  Bytes statistics();
  Status set_statistics(CBytes);

 private:
  Task(std::unique_ptr<models::Network>, DType, Numerics);
  std::vector<const double*> read(std::span<const train::Param> at);

  std::unique_ptr<models::Network> network_;
  std::vector<models::Tensor> tensors_;
  DType dtype_;
  Numerics numerics_;
  std::vector<std::vector<double>> values_, grads_;   // what the network sees
  std::vector<std::vector<std::byte>> mine_, slope_;  // of type dtype_
};

/// As settle(options, ranks), and numerics that are inherited become those in force in the job of `world`.
Result<TrainOptions> settle(TrainOptions, const Group& world);
/// Collective: fails on all ranks if it fails on one; ranks that are well are told who is not.
Status agree(Group& world, const Status& mine);
/// Invalid, naming the step, where training has diverged: `loss` is no finite number. The same on all ranks,
/// as the mean loss is.
Status finite(const TrainOptions&, int step, double loss);
/// Collective: invalid on all ranks unless all were given the same options.
Status same_options(Group& world, const TrainOptions&);
/// Collective: the mean over ranks of `loss`, and sqrt(mean of ||x_r - mean of x||^2), summed by `numerics`.
struct Measure {
  double loss = 0, consensus = 0;
};
Result<Measure> measure(Group& world, const std::vector<double>& x, double loss, Numerics numerics);

}  // namespace ouro::tools
