// The position of a kernel body in its launch: one thread of one block. Bodies are templates over this; on a
// device all threads of a block run them, on the host one thread that acts as a whole block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/core/hd.h"

namespace ouro::gpu {

/// A block on the host: one thread. `sync` has nothing to wait for.
struct HostBlock {
  int block_, blocks_;
  OURO_HD int thread() const { return 0; }
  OURO_HD int threads() const { return 1; }
  OURO_HD int block() const { return block_; }
  OURO_HD int blocks() const { return blocks_; }
  OURO_HD void sync() const {}
  OURO_HD bool any(bool mine) const { return mine; }
};

#if defined(__CUDACC__)
struct DeviceBlock {
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  /// sync(); returns to all threads whether `mine` is true on any of them.
  __device__ __forceinline__ bool any(bool mine) const { return __syncthreads_or(mine) != 0; }
};
#endif

}  // namespace ouro::gpu
