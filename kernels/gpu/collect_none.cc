// The device entries of collect.cu where there is no CUDA compiler: none.
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu::collect {
Entries device_entries() { return {}; }
}  // namespace ouro::gpu::collect
