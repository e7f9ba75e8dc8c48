/// The data that trainers work on: a model's parameters and buffers, as views of memory that the model owns.
/// For users, through the other headers of this folder.
/// @file
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro {
using Bytes = std::vector<std::byte>;       ///< bytes that the holder owns
using CBytes = std::span<const std::byte>;  ///< bytes that the holder does not own
}  // namespace ouro

/// Trainers, optimisers, topologies and layouts, for research trainers to embed.
namespace ouro::train {

/// Memory order of a tensor's elements. channels_last: 4-D, stored in the order (0,2,3,1).
enum class Order { row_major, channels_last };

/// A trainable tensor. `grad` has the value's count, type and device; if data is null, this step has no
/// gradient for it.
struct Param {
  std::string name;                      ///< unique in its model
  View value;                            ///< the elements
  View grad = {};                        ///< its gradient, or null
  std::vector<std::int64_t> shape = {};  ///< elements of each dimension
  Order order = Order::row_major;        ///< memory order of the elements
};
/// A tensor that is not trained (running statistics, counters).
struct Buffer {
  std::string name;  ///< unique in its model
  View value;        ///< the elements
};

}  // namespace ouro::train
