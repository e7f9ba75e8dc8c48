// The device entries of collect.h for any type and reduction: one kernel each, with a switch inside.
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu::collect {
namespace {

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fused_generic_kernel(const __grid_constant__ FusedArgs a) {
  fused_generic(a, DeviceBlock{});
}
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    hop_generic_kernel(const __grid_constant__ HopArgs a) {
  hop_generic(a, DeviceBlock{});
}

}  // namespace

const void* fused_generic_entry() { return reinterpret_cast<const void*>(fused_generic_kernel); }
const void* hop_generic_entry() { return reinterpret_cast<const void*>(hop_generic_kernel); }

}  // namespace ouro::gpu::collect
