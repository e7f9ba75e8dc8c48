// CUDA's Gpu, with or without a driver. Used by its tests; all other code calls gpu() or cuda().
#pragma once
#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// The object that cuda() returns where CUDA works. If CUDA does not work, it has no devices, and each call
/// is `unsupported` and says why. Exists in builds with CUDA only.
Gpu& cuda_even_without_driver();

}  // namespace ouro::gpu
