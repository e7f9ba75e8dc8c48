// Element counts, strides and views of memory with a shape: the parts of order_of and
// view_of (ouro/dlpack.hpp).
// Used by dlpack.cc and strided.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ouro/dlpack.hpp"

namespace ouro {

using Numbers = std::span<const std::int64_t>;

inline constexpr std::size_t kMaxDims = 64;  // the usual limit of array libraries
inline constexpr std::size_t kChannelsLastDims = 4;

/// The number of elements; it bounds every product of strides without gaps.
Result<std::size_t> count_of(Numbers shape);
/// The strides of an array without gaps; all 1 if it has no elements. channels_last needs 4 dimensions.
std::vector<std::int64_t> strides_of(Numbers shape, train::Order);
/// A view of `count` elements from address `at` on; `invalid` if it would reach beyond the last address.
Result<View> view_at(std::uintptr_t at, std::size_t count, DType, Device);

}  // namespace ouro
