// Replaces collect.cu in builds without a CUDA compiler: no device entries.
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu::collect {
Entries device_entries() { return {}; }
}  // namespace ouro::gpu::collect
