// One rank's part in a training run: network, samples, memory; and helpers by which all ranks agree. Used by
// the strategies of ouro-train.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "ouro/train/param.hpp"
#include "tools/models/network.h"
#include "tools/train/options.h"

namespace ouro::tools {

/// The samples first, first + stride, ... of the training set in its order, cyclically.
class Pool {
 public:
  /// Requires at least one sample: first < samples. seed 0: the data set's own order.
  Pool(std::uint32_t samples, std::uint32_t seed, int first, int stride);
  std::uint32_t operator[](std::int64_t i) const {
    return order_[static_cast<std::size_t>(i) % order_.size()];
  }

 private:
  std::vector<std::uint32_t> order_;
};

class Task {
 public:
  /// Collective over the world group: either all ranks have loaded their data, or all get an error. `o` must
  /// be settled.
  static Result<Task> make(Context&, const TrainOptions& o);

  models::Network& network() { return *network_; }
  const models::Network& network() const { return *network_; }
  /// Initial values and gradients, in memory of this object; trainers may move both elsewhere.
  std::vector<train::Param> params();
  std::vector<train::Buffer> buffers();
  /// Evaluates the network at the values of `at`, a list like that of `params`: writes `factor` times the
  /// gradient of the samples' mean loss to its gradients, and returns the mean loss. Writes zeros and returns
  /// 0 if there are no samples.
  double gradients(std::span<const train::Param> at, std::span<const std::uint32_t> samples, double factor);
  /// All values of the list, concatenated.
  std::vector<double> flat(std::span<const train::Param> at);

  /// Collective. Tests the model with the values `at`, which must be equal on all ranks, and the mean of the
  /// ranks' statistics.
  Status test(Group& world, std::span<const train::Param> at, TrainReport&);
  /// The state that `gradients` changes in addition to the gradients, for saving and resuming.
  Bytes statistics();
  Status set_statistics(CBytes);

 private:
  Task(std::unique_ptr<models::Network>, DType, Numerics);
  std::vector<const double*> read(std::span<const train::Param> at);

  std::unique_ptr<models::Network> network_;
  std::vector<models::Tensor> tensors_;
  DType dtype_;
  Numerics numerics_;
  std::vector<std::vector<double>> values_, grads_;   // in double, as the network sees them
  std::vector<std::vector<std::byte>> mine_, slope_;  // values and gradients of type dtype_
};

/// As settle(options, ranks); inherited numerics are replaced by those in force in the job of `world`.
Result<TrainOptions> settle(TrainOptions, const Group& world);
/// Collective: fails on all ranks if `mine` is a failure on any; ranks without a failure receive the
/// failed rank.
Status agree(Group& world, const Status& mine);
/// Fails with invalid, naming the step, if training has diverged: `loss` is not finite. The result is the
/// same on all ranks if the mean loss is.
Status finite(const TrainOptions&, int step, double loss);
/// Collective: fails with invalid on all ranks unless all were given the same options.
Status same_options(Group& world, const TrainOptions&);
/// Collective: the mean over ranks of `loss`, and sqrt(mean of ||x_r - mean of x||^2), summed by `numerics`.
struct Measure {
  double loss = 0, consensus = 0;
};
Result<Measure> measure(Group& world, const std::vector<double>& x, double loss, Numerics numerics);

}  // namespace ouro::tools
