// The device entry of the resident kernel that serves any flow and reduction of integers. Used
// by resident.cu.
#include "kernels/gpu/resident_list.h"

namespace ouro::gpu {
namespace {

__global__ void __launch_bounds__(kResidentThreads, 1)
    resident_any_integer(const __grid_constant__ ResidentArgs args) {
  __shared__ ResidentShared shared;
  run_and_end<ResidentEntries::any_integer<DeviceBlock>>(args, DeviceBlock{}, shared);
}

}  // namespace

const void* resident_any_integer_entry() { return reinterpret_cast<const void*>(&resident_any_integer); }

}  // namespace ouro::gpu
