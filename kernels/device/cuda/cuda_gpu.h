// CUDA's Gpu as it is, with or without a driver. Used by its tests; everybody else asks gpu() or cuda().
#pragma once
#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// The object that cuda() returns where CUDA works. Elsewhere it has no devices, and each call is
/// `unsupported` and says why. Exists in builds with CUDA only.
Gpu& cuda_even_without_driver();

}  // namespace ouro::gpu
