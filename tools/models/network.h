// A small network and its data set behind one interface: the perceptron or the convolutional network on
// digits, the transformer on text. Used by ouro-train and by tests of the trainers.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tools/models/tensor.h"

namespace ouro::models {

/// Arithmetic is in double. Not thread-safe; each rank has its own network, with the same data.
class Network {
 public:
  /// State that training changes but that is not a parameter: running means and variances.
  struct Statistic {
    std::string name;
    std::span<double> values;
  };
  /// Sums over test rows.
  struct Score {
    double loss = 0;
    std::int64_t correct = 0, rows = 0;
  };

  virtual ~Network() = default;
  virtual std::vector<Tensor> tensors() const = 0;
  /// The order in which the backward pass finishes gradients, as indices of `tensors`.
  virtual std::vector<int> ready_order() const = 0;
  virtual std::vector<Statistic> statistics() { return {}; }
  virtual std::uint32_t samples() const = 0;  ///< number of training samples, numbered from 0
  /// Returns the mean loss of the samples (at least one) and adds its gradients. Statistics advance
  /// by one step.
  virtual double train(Values, std::span<const std::uint32_t> samples, Gradients) = 0;
  /// Tests rows part, part + parts, ... of the test set; Score::rows is 0 if the data set has no test rows.
  virtual Score test(Values, std::uint32_t part, std::uint32_t parts) const = 0;
};

enum class NetworkKind : std::uint8_t {
  mlp,  ///< digits: 64-32-10, tanh
  cnn,  ///< digits: two convolutions of 8 and 16 channels
  text  ///< characters of a licence: one transformer block; no test rows
};

/// Errors: those of the data file (digits.h); invalid (the text is too short).
Result<std::unique_ptr<Network>> make_network(NetworkKind);

}  // namespace ouro::models
