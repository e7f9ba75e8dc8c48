// Device entries of the resident kernels that read and write the buffers of all ranks by pointer: one block
// per channel. Used by resident.cu.
#include "kernels/gpu/resident_list.h"

namespace ouro::gpu {
namespace {

#define OURO_X(name, ...)                                                         \
  __global__ void __launch_bounds__(kResidentThreads, 1)                          \
      resident_##name(const __grid_constant__ ResidentArgs args) {                \
    __shared__ ResidentShared shared;                                             \
    run_and_end<ResidentEntries::name<DeviceBlock>>(args, DeviceBlock{}, shared); \
  }
OURO_RESIDENT_POINTERS(OURO_X)
#undef OURO_X

}  // namespace

const void* resident_pointer_entry(ResidentKernel kernel) {
#define OURO_X(name, ...) \
  if (kernel == ResidentKernel::name) return reinterpret_cast<const void*>(&resident_##name);
  OURO_RESIDENT_POINTERS(OURO_X)
#undef OURO_X
  return nullptr;
}

}  // namespace ouro::gpu
