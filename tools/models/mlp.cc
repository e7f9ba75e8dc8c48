// Forward and backward pass of the perceptron, one row at a time.
// Used through mlp.h.
#include "tools/models/mlp.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ouro::models {
namespace {

template <class T>
struct Activations {
  std::array<T, Mlp::kHidden> hidden;
  std::array<T, Mlp::kOut> out;
};

template <class T>
Activations<T> forward(std::span<const float> x, std::span<const T> p) {
  Activations<T> a;
  for (int j = 0; j < Mlp::kHidden; ++j) {
    const T* w = &p[Mlp::kW1 + static_cast<std::size_t>(j * Mlp::kIn)];
    T sum = p[Mlp::kB1 + static_cast<std::size_t>(j)];
    for (int i = 0; i < Mlp::kIn; ++i) sum += w[i] * T(x[static_cast<std::size_t>(i)]);
    a.hidden[static_cast<std::size_t>(j)] = std::tanh(sum);
  }
  for (int k = 0; k < Mlp::kOut; ++k) {
    const T* w = &p[Mlp::kW2 + static_cast<std::size_t>(k * Mlp::kHidden)];
    T sum = p[Mlp::kB2 + static_cast<std::size_t>(k)];
    for (int j = 0; j < Mlp::kHidden; ++j) sum += w[j] * a.hidden[static_cast<std::size_t>(j)];
    a.out[static_cast<std::size_t>(k)] = sum;
  }
  return a;
}

/// Turns outputs into d(loss)/d(output) = softmax - onehot, in place; returns the loss.
template <class T>
T cross_entropy(std::array<T, Mlp::kOut>& out, std::size_t label) {
  const T top = *std::max_element(out.begin(), out.end());  // keeps exp() from overflowing
  const T own = out[label] - top;
  T sum = 0;
  for (T& o : out) sum += o = std::exp(o - top);
  for (T& o : out) o /= sum;
  out[label] -= T(1);
  return std::log(sum) - own;
}

/// Adds d outer x to the matrix at `weight` and d to the vector at `bias`.
template <class T, class X>
void add_layer(std::span<double> gradient, std::size_t weight, std::size_t bias, std::span<const T> d,
               std::span<const X> x) {
  for (std::size_t j = 0; j < d.size(); ++j) {
    double* w = &gradient[weight + j * x.size()];
    for (std::size_t i = 0; i < x.size(); ++i) w[i] += static_cast<double>(d[j] * T(x[i]));
    gradient[bias + j] += static_cast<double>(d[j]);
  }
}

}  // namespace

template <class T>
std::vector<T> mlp_initial_parameters() {
  std::vector<T> p;
  p.reserve(Mlp::kParameters);
  int pid = 0;
  const auto tensor = [&](int count, double scale) {
    for (int i = 0; i < count; ++i) p.push_back(static_cast<T>(std::sin(0.7 * i + pid + 1) * scale));
    ++pid;
  };
  tensor(Mlp::kHidden * Mlp::kIn, 1 / std::sqrt(double{Mlp::kIn}));
  tensor(Mlp::kHidden, 0.05);
  tensor(Mlp::kOut * Mlp::kHidden, 1 / std::sqrt(double{Mlp::kHidden}));
  tensor(Mlp::kOut, 0.05);
  return p;
}

template <class T>
double mlp_add_gradients(const Digits& digits, std::span<const std::uint32_t> rows,
                         std::span<const T> parameters, std::span<double> gradient) {
  double loss = 0;
  for (const std::uint32_t row : rows) {
    const std::span<const float> x = digits.image(row);
    Activations<T> a = forward<T>(x, parameters);
    loss += static_cast<double>(cross_entropy(a.out, digits.labels[row]));
    const std::span<const T> d_out = a.out;  // cross_entropy left the derivative there
    add_layer<T, T>(gradient, Mlp::kW2, Mlp::kB2, d_out, a.hidden);
    std::array<T, Mlp::kHidden> d_hidden{};
    for (std::size_t k = 0; k < d_out.size(); ++k)
      for (std::size_t j = 0; j < d_hidden.size(); ++j)
        d_hidden[j] += d_out[k] * parameters[Mlp::kW2 + k * d_hidden.size() + j];
    for (std::size_t j = 0; j < d_hidden.size(); ++j) d_hidden[j] *= T(1) - a.hidden[j] * a.hidden[j];
    add_layer<T, float>(gradient, Mlp::kW1, Mlp::kB1, d_hidden, x);
  }
  return loss;
}

template <class T>
int mlp_predict(const Digits& digits, std::uint32_t row, std::span<const T> parameters) {
  const Activations<T> a = forward<T>(digits.image(row), parameters);
  return static_cast<int>(std::max_element(a.out.begin(), a.out.end()) - a.out.begin());
}

#define OURO_X(T)                                                                                         \
  template std::vector<T> mlp_initial_parameters<T>();                                                    \
  template double mlp_add_gradients<T>(const Digits&, std::span<const std::uint32_t>, std::span<const T>, \
                                       std::span<double>);                                                \
  template int mlp_predict<T>(const Digits&, std::uint32_t, std::span<const T>);
OURO_X(float) OURO_X(double)
#undef OURO_X

}  // namespace ouro::models
