// Stands in for kernels.cu in builds without a CUDA compiler. See kernels.h.
#include "bench/gpu_floor/kernels.h"

namespace ouro::bench {

const void* floor_entry(FloorKernel) { return nullptr; }

}  // namespace ouro::bench
