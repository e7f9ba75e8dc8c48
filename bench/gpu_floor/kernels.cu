// The device entries of the kernels of bench_gpu_floor. See kernels.h.
#include "bench/gpu_floor/kernels.h"

namespace ouro::bench {
namespace {

template <std::size_t kBytes>
__global__ void empty(__grid_constant__ const Unused<kBytes> args) {}

/// Each thread has four units of each array under way.
template <int kIn, int kOut>
__global__ void __launch_bounds__(512) mix(__grid_constant__ const MixArgs args) {
  constexpr int kUnits = kIn > 1 ? 1 : 4;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.units;
       i += kUnits * stride) {
    uint4 sum[kUnits] = {};
#pragma unroll
    for (int k = 0; k < kIn; ++k)
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        if (i + u * stride >= args.units) continue;
        const uint4 x = __ldg(reinterpret_cast<const uint4*>(args.in[k]) + i + u * stride);
        sum[u].x ^= x.x, sum[u].y ^= x.y, sum[u].z ^= x.z, sum[u].w ^= x.w;
      }
#pragma unroll
    for (int k = 0; k < kOut; ++k)
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (i + u * stride < args.units) reinterpret_cast<uint4*>(args.out[k])[i + u * stride] = sum[u];
  }
}

__global__ void store_word(__grid_constant__ const WordArgs args) {
  __threadfence_system();
  *const_cast<volatile std::uint32_t*>(args.word) = args.value;
}

}  // namespace

const void* floor_entry(FloorKernel k) {
  switch (k) {
    case FloorKernel::empty_small:
      return reinterpret_cast<const void*>(&empty<kSmallArgs>);
    case FloorKernel::empty_fused:
      return reinterpret_cast<const void*>(&empty<kFusedArgs>);
    case FloorKernel::empty_resident:
      return reinterpret_cast<const void*>(&empty<kResidentArgs>);
    case FloorKernel::mix_1_8:
      return reinterpret_cast<const void*>(&mix<1, 8>);
    case FloorKernel::mix_8_1:
      return reinterpret_cast<const void*>(&mix<8, 1>);
    case FloorKernel::store_word:
      return reinterpret_cast<const void*>(&store_word);
  }
  return nullptr;
}

}  // namespace ouro::bench
