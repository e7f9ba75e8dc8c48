// Replaces resident.cu in builds without a CUDA compiler: the resident kernels run on host threads only.
#include "kernels/gpu/resident_list.h"

namespace ouro::gpu {

const void* resident_entry(ResidentKernel) { return nullptr; }

}  // namespace ouro::gpu
