// Arrays with a shape, on the host or on a GPU. See ouro/train/average.hpp.
#include <fmt/format.h>

#include <limits>

#include "api/train/optim/update.h"
#include "ouro/train/average.hpp"

namespace ouro::train {

Result<Array> Array::make(std::span<const std::int64_t> shape, DType dtype, Device device) {
  std::size_t count = 1, bytes = 0;
  for (const std::int64_t d : shape) {
    if (d < 0) return invalid(fmt::format("an array with a dimension of {}", d));
    if (__builtin_mul_overflow(count, static_cast<std::size_t>(d), &count))
      return invalid("an array of more elements than an address counts");
  }
  if (__builtin_mul_overflow(count, size_of(dtype), &bytes) ||
      bytes > std::numeric_limits<std::size_t>::max() / 2)
    return invalid("an array of more bytes than an address counts");
  Array a;
  a.view_ = {nullptr, count, dtype, device};
  a.shape_.assign(shape.begin(), shape.end());
  if (bytes == 0) return a;
  OURO_ASSIGN(auto made, ZeroedBytes::make(device, bytes));
  auto owner = std::make_shared<ZeroedBytes>(std::move(made));
  a.view_.data = owner->data();
  a.memory_ = std::move(owner);
  return a;
}

}  // namespace ouro::train
