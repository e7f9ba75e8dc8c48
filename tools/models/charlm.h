// A character language model: one transformer block with tied embedding, 128 tokens, width 32, 4 heads,
// sequences of 32. Used by ouro-train and by tests of the trainers.
#pragma once
#include <span>
#include <vector>

#include "tools/models/tensor.h"

namespace ouro::models {

class CharLm {
 public:
  static constexpr int kTokens = 128, kWidth = 32, kHeads = 4, kHead = 8, kLength = 32;
  enum {
    kPos,
    kEmb,
    kQkv,
    kQkvBias,
    kProj,
    kProjBias,
    kNorm1,
    kNorm1Bias,
    kNorm2,
    kNorm2Bias,
    kF1,
    kF1Bias,
    kF2,
    kF2Bias,
    kTensors
  };

  static std::vector<Tensor> tensors();
  /// The order in which the backward pass finishes gradients, as indices of `tensors`.
  static std::vector<int> ready_order() {
    return {kF2Bias, kF2,      kF1Bias, kF1,    kNorm2,     kNorm2Bias, kProjBias,
            kProj,   kQkvBias, kQkv,    kNorm1, kNorm1Bias, kPos,       kEmb};
  }
  /// Returns the mean loss over all tokens and adds its gradients. `text`: kLength + 1 tokens for each
  /// sequence; the first kLength are inputs and the last kLength are targets.
  static double train(Values, std::span<const int> text, Gradients);
};

}  // namespace ouro::models
