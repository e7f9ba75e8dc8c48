// Names, shapes and initial values of a small network's parameters, which form one list. Used by the networks
// of this folder and by the code that trains them.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ouro::models {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t count() const {
    std::size_t n = 1;
    for (const std::int64_t d : shape) n *= static_cast<std::size_t>(d);
    return n;
  }
};

/// One pointer for each tensor, in the order of the network's list: to parameters, or to gradients, wherever
/// these are stored.
using Values = std::span<const double* const>;
using Gradients = std::span<double* const>;

/// With v = sin(0.7 i + index + 1): norms 0.1 v (+ 1 for weights), other vectors 0.05 v, matrices v /
/// sqrt(fan in). A closed form that gives the same values everywhere.
inline std::vector<double> initial_values(const Tensor& t, std::size_t index) {
  const auto has = [&](const char* part) { return t.name.find(part) != std::string::npos; };
  std::vector<double> values(t.count());
  const double fan_in =
      t.shape.empty() ? 1 : static_cast<double>(t.count()) / static_cast<double>(t.shape[0]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = std::sin(0.7 * static_cast<double>(i) + static_cast<double>(index) + 1);
    values[i] = has("bn") || has("ln") ? 0.1 * v + (t.name.ends_with("weight") ? 1 : 0)
                : t.shape.size() == 1  ? 0.05 * v
                                       : v / std::sqrt(fan_in);
  }
  return values;
}

}  // namespace ouro::models
