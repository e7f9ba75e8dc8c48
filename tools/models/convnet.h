// A convolutional network for 8x8 images: convolution, batch norm, ReLU, strided convolution, ReLU, linear;
// softmax cross entropy. Used by ouro-train and by tests of the trainers.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tools/models/tensor.h"

namespace ouro::models {

class ConvNet {
 public:
  static constexpr int kSide = 8, kPixels = kSide * kSide, kClasses = 10;
  enum { kConv1, kBias1, kNormWeight, kNormBias, kConv2, kBias2, kLinear, kBias3, kTensors };

  ConvNet(int channels1, int channels2) : c1_(channels1), c2_(channels2) {}
  /// conv1.weight, conv1.bias, bn1.weight, bn1.bias, conv2.weight, conv2.bias, fc.weight, fc.bias.
  std::vector<Tensor> tensors() const;
  /// The order in which the backward pass finishes gradients, as indices of `tensors`.
  static std::vector<int> ready_order() {
    return {kBias3, kLinear, kConv2, kBias2, kNormWeight, kNormBias, kConv1, kBias1};
  }

  /// Running means and variances of the batch norm, channels1 elements each; each training step moves them by
  /// a tenth towards the batch's.
  struct Running {
    std::vector<double> mean, variance;
  };
  Running running() const {
    return {std::vector<double>(static_cast<std::size_t>(c1_)),
            std::vector<double>(static_cast<std::size_t>(c1_), 1)};
  }

  /// Returns the mean loss of the batch and adds its gradients. `images`: kPixels per sample.
  double train(Values, std::span<const double> images, std::span<const int> labels, Running&,
               Gradients) const;
  struct Score {
    double loss = 0;  ///< mean over the batch
    int correct = 0;
  };
  Score evaluate(Values, std::span<const double> images, std::span<const int> labels, const Running&) const;

 private:
  struct Pass;
  void forward(Values, Pass&) const;
  const int c1_, c2_;
};

}  // namespace ouro::models
