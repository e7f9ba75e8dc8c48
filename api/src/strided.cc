// Views of memory with strides: decides which element orders are supported. See ouro/dlpack.hpp.
#include "api/src/strided.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

namespace ouro {

using train::Order;

namespace {

/// The dimension at `depth` in memory order, counted from the outermost.
std::size_t axis(std::size_t depth, Order order) {
  constexpr std::array<std::size_t, kChannelsLastDims> kChannelsLast{0, 2, 3, 1};
  return order == Order::channels_last ? kChannelsLast[depth] : depth;
}

/// Whether an array that has elements is stored in this order without gaps.
bool lies_in(Order order, Numbers shape, Numbers strides) {
  if (order == Order::channels_last && shape.size() != kChannelsLastDims) return false;
  std::int64_t step = 1;
  for (std::size_t depth = shape.size(); depth-- > 0;) {
    const std::size_t d = axis(depth, order);
    if (shape[d] == 1) continue;
    if (strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

}  // namespace

Result<std::size_t> count_of(Numbers shape) {
  if (shape.size() > kMaxDims)
    return unsupported(fmt::format("an array of {} dimensions; at most {}", shape.size(), kMaxDims));
  if (std::ranges::any_of(shape, [](std::int64_t d) { return d < 0; }))
    return invalid(fmt::format("an array of shape {}: a dimension below 0", shape));
  if (std::ranges::find(shape, 0) != shape.end()) return std::size_t{0};
  std::int64_t count = 1;
  for (const std::int64_t d : shape)
    if (__builtin_mul_overflow(count, d, &count))
      return invalid(fmt::format("an array of shape {}: more elements than an address counts", shape));
  return static_cast<std::size_t>(count);
}

std::vector<std::int64_t> strides_of(Numbers shape, Order order) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  if (std::ranges::find(shape, 0) != shape.end()) return strides;
  std::int64_t step = 1;
  for (std::size_t depth = shape.size(); depth-- > 0;) {
    const std::size_t d = axis(depth, order);
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

Result<View> view_at(std::uintptr_t at, std::size_t count, DType dtype, Device device) {
  std::size_t bytes = 0;
  std::uintptr_t end = 0;
  if (__builtin_mul_overflow(count, size_of(dtype), &bytes) ||
      bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) ||
      __builtin_add_overflow(at, bytes, &end))
    return invalid(fmt::format("an array of {} elements of type {}: more bytes than an address counts", count,
                               name(dtype)));
  return View(reinterpret_cast<void*>(at), count, dtype, device);
}

Result<Order> order_of(Numbers shape, Numbers strides) {
  OURO_ASSIGN(auto count, count_of(shape));
  if (strides.empty()) return Order::row_major;
  if (strides.size() != shape.size())
    return invalid(fmt::format("{} strides for {} dimensions", strides.size(), shape.size()));
  if (count == 0 || lies_in(Order::row_major, shape, strides)) return Order::row_major;
  if (lies_in(Order::channels_last, shape, strides)) return Order::channels_last;
  return unsupported(fmt::format(
      "an array of shape {} with strides {}: neither row-major nor channels_last without gaps; copy it first",
      shape, strides));
}

Result<View> view_of(void* data, DType dtype, Device device, Numbers shape, Numbers strides, Order order) {
  OURO_TRY(order_of(shape, strides).status());
  auto count = count_of(shape);
  const auto compact = strides_of(shape, Order::row_major);
  if (*count > 0 && !lies_in(order, shape, strides.empty() ? Numbers(compact) : strides))
    return unsupported(fmt::format("an array of shape {} with strides {} is not {}", shape,
                                   strides.empty() ? Numbers(compact) : strides,
                                   order == Order::row_major ? "row-major" : "channels_last"));
  if (data == nullptr && *count > 0) return invalid(fmt::format("no data for {} elements", *count));
  return view_at(reinterpret_cast<std::uintptr_t>(data), *count, dtype, device);
}

}  // namespace ouro
