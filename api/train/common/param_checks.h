// Requirements of averages, optimisers and trainers on lists of parameters. Used by average.cc,
// federation.cc, outer.cc (check_tensors), gossip.cc, shard.cc (check_trainable), optimizer.cc,
// outer*.cc (check_names).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

inline bool frozen(const Param& p) { return p.grad.data == nullptr; }
/// Number of elements of a shape; -1 if a dimension is negative or an address cannot count them.
std::int64_t elements_of(std::span<const std::int64_t> shape);
/// Whether the type can be trained and averaged: floating-point of 16 to 64 bits.
constexpr bool trains(DType t) {
  return t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

/// Checks the elements, types, device and memory of a list that is to be averaged; an array may be listed
/// twice. Errors: invalid, naming the parameter. `gradients`: checks the gradients, where there are any,
/// instead of the values.
Status check_tensors(std::string_view call, std::span<const Param>, bool gradients = false);
/// Checks that at least one parameter trains, that memory, shapes and gradients fit, that names are unique
/// and that no two parameters share memory. Errors: invalid, naming the parameter.
Status check_trainable(std::string_view call, std::span<const Param>);
/// Checks that names are unique.
Status check_names(std::string_view call, std::span<const Param>);

}  // namespace ouro::train
