/// Buckets: which parameters of a model travel together, and where each is located in the block of its
/// bucket. Pure functions of sizes. For GossipTrainer, and for users who want to know the partition.
/// @file
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ouro/train/param.hpp"

namespace ouro::train {

/// Tensors begin at multiples of this number of elements, so that every type is aligned for wide loads.
inline constexpr std::size_t kBlockAlign = 32;
/// The next multiple of kBlockAlign.
constexpr std::size_t ceil32(std::size_t n) { return (n + kBlockAlign - 1) / kBlockAlign * kBlockAlign; }

/// Parameters of one type on one device, in their order in the block.
struct BucketLayout {
  DType dtype = DType::f32;          ///< type of all its parameters
  Device device = {};                ///< device of all its parameters
  std::vector<int> params;           ///< indices into the planned list
  std::vector<std::size_t> offsets;  ///< offset of each in the block, in elements
  std::size_t length = 0;  ///< length of the block, in elements; all blocks of a plan have different lengths
};

/// Walks `order` (indices into `params`, each at most once) once for each pair of type and device, in the
/// order in which the pairs appear, and adds ceil32(count) elements per parameter; a bucket closes when it
/// holds `bucket_mb` MiB or more. 0: one bucket per parameter. Errors: invalid (an index; a bucket_mb that is
/// negative or NaN).
OURO_API Result<std::vector<BucketLayout>> plan_buckets(std::span<const Param> params,
                                                        std::span<const int> order, double bucket_mb = 25);

}  // namespace ouro::train
