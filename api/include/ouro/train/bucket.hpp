/// Buckets: which parameters of a model travel together, and where each lies in the block of its bucket.
/// Pure functions of sizes. For GossipTrainer, and for users who want to know.
/// @file
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ouro/train/param.hpp"

namespace ouro::train {

/// Tensors begin at multiples of this many elements, so that every type is aligned for wide loads.
inline constexpr std::size_t kBlockAlign = 32;
/// The next multiple of kBlockAlign.
constexpr std::size_t ceil32(std::size_t n) { return (n + kBlockAlign - 1) / kBlockAlign * kBlockAlign; }

/// Parameters of one type on one device, in the order of their block.
struct BucketLayout {
  DType dtype = DType::f32;          ///< of all its parameters
  Device device = {};                ///< where they are
  std::vector<int> params;           ///< indices into the list that was planned
  std::vector<std::size_t> offsets;  ///< of each in the block, in elements
  std::size_t length = 0;            ///< of the block, in elements; no two blocks of a plan are equally long
};

/// Walks `order` (indices into `params`, each at most once) once for each pair of type and device, in the
/// order in which the pairs appear, adding ceil32(count) elements a parameter; a bucket closes when it holds
/// `bucket_mb` MiB or more. 0: one bucket a parameter. Errors: invalid (an index, a size that is negative or
/// no number).
OURO_API Result<std::vector<BucketLayout>> plan_buckets(std::span<const Param> params,
                                                        std::span<const int> order, double bucket_mb = 25);

}  // namespace ouro::train
