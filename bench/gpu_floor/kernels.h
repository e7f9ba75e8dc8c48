// Kernels that only bench_gpu_floor has: empty ones with arguments of three sizes, and ones that read and
// write different numbers of arrays. Used by its parts.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/gpu.h"

namespace ouro::bench {

/// Arguments that an empty kernel does not use. 2500 and 3600 bytes are about those of the fused and the
/// resident kernels.
template <std::size_t kBytes>
struct Unused {
  unsigned char bytes[kBytes];
};
inline constexpr std::size_t kSmallArgs = 16, kFusedArgs = 2500, kResidentArgs = 3600;

/// The most arrays that a mix reads or writes.
inline constexpr int kMixArrays = 8;
struct MixArgs {
  const std::byte* in[kMixArrays];
  std::byte* out[kMixArrays];
  std::uint64_t units;  ///< of 16 bytes, of each array
};

/// Stores a word, with everything before it visible to the host.
struct WordArgs {
  std::uint32_t* word;
  std::uint32_t value;
};

enum class FloorKernel { empty_small, empty_fused, empty_resident, mix_1_8, mix_8_1, store_word };
inline constexpr int kFloorKernels = 6;
/// The device's entry; nullptr in builds without a CUDA compiler.
const void* floor_entry(FloorKernel);
const gpu::Kernel& floor_kernel(FloorKernel);

}  // namespace ouro::bench
