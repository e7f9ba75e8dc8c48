// The multilayer perceptron 64-32-10 (tanh, softmax cross entropy) on digits: sums of gradients over rows.
// Used by ouro-train, its tests and benches.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/models/digits.h"

namespace ouro::models {

/// Parameters and gradients are flat, in the order fc1.weight (32,64), fc1.bias, fc2.weight (10,32),
/// fc2.bias, each row-major. T is float or double: the type of parameters, activations and per-row gradients.
struct Mlp {
  static constexpr int kIn = Digits::kPixels, kHidden = 32, kOut = Digits::kClasses;
  static constexpr std::size_t kW1 = 0, kB1 = kW1 + kHidden * kIn, kW2 = kB1 + kHidden,
                               kB2 = kW2 + kOut * kHidden;
  static constexpr std::size_t kParameters = kB2 + kOut;
};

/// v / sqrt(fan in) for matrices and 0.05 v for vectors, v = sin(0.7 i + pid + 1), where pid is the number of
/// the parameter; computed in double: the same on every rank without communication.
template <class T>
std::vector<T> mlp_initial_parameters();

/// Adds the sum (not the mean) over `rows` of the loss gradients to `gradient`; returns the sum of the
/// losses. Sums are kept in double whatever T is, so that splitting a batch among ranks costs only one
/// rounding per rank.
template <class T>
double mlp_add_gradients(const Digits&, std::span<const std::uint32_t> rows, std::span<const T> parameters,
                         std::span<double> gradient);

/// The class with the largest output.
template <class T>
int mlp_predict(const Digits&, std::uint32_t row, std::span<const T> parameters);

}  // namespace ouro::models
