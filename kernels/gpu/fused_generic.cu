// The device entry of the fused kernel for any type and reduction, with a switch inside: as much code as the
// unit of all hot ones. Used by collect.cu.
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu::collect {
namespace {

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fused_generic_kernel(const __grid_constant__ FusedArgs a) {
  fused_launch<DeviceBlock, fused_generic<DeviceBlock>>(a, DeviceBlock{});
}

}  // namespace

const void* fused_generic_entry() { return reinterpret_cast<const void*>(fused_generic_kernel); }

}  // namespace ouro::gpu::collect
