// What averages, optimisers and trainers demand of a list of parameters. Used by average.cc, federation.cc,
// outer.cc (check_tensors), gossip.cc, shard.cc (check_trainable), optimizer.cc, outer*.cc (check_names).
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

inline bool frozen(const Param& p) { return p.grad.data == nullptr; }
/// Elements of a shape; -1 where a dimension is negative or an address cannot count them.
std::int64_t elements_of(std::span<const std::int64_t> shape);
/// Floating-point numbers of 16 to 64 bits: what trains, and what averages.
constexpr bool trains(DType t) {
  return t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

/// Elements, types, device and memory of a list that is to be averaged; arrays may be listed twice. Errors:
/// invalid, naming the parameter. `gradients`: it is about the gradients, of those that have one.
Status check_tensors(std::string_view call, std::span<const Param>, bool gradients = false);
/// At least one parameter that trains; memory, shapes and gradients that fit; names once each, and no memory
/// of two parameters. Errors: invalid, naming the parameter.
Status check_trainable(std::string_view call, std::span<const Param>);
/// Names once each.
Status check_names(std::string_view call, std::span<const Param>);

}  // namespace ouro::train
