// What trainers are about: a model's parameters and buffers, as views of memory that the model owns.
// For users, through the other headers of this folder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro {
using Bytes = std::vector<std::byte>;
using CBytes = std::span<const std::byte>;
}  // namespace ouro

namespace ouro::train {

/// How the elements of a tensor lie in memory. channels_last: 4-D, stored in the order (0,2,3,1).
enum class Order { row_major, channels_last };

/// A trainable tensor. `grad` has the value's count, type and device; no gradient in this step: data is null.
struct Param {
  std::string name;
  View value, grad;
  std::vector<std::int64_t> shape = {};
  Order order = Order::row_major;
};
struct Buffer {
  std::string name;
  View value;
};

}  // namespace ouro::train
