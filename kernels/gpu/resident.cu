// Device entries of the resident kernels that have one flow each: one block per channel. Used
// by resident_host.cc.
#include "kernels/gpu/resident_list.h"

namespace ouro::gpu {
namespace {

#define OURO_X(name, ...)                                                         \
  __global__ void __launch_bounds__(kResidentThreads, 1)                          \
      resident_##name(const __grid_constant__ ResidentArgs args) {                \
    __shared__ ResidentShared shared;                                             \
    run_and_end<ResidentEntries::name<DeviceBlock>>(args, DeviceBlock{}, shared); \
  }
OURO_RESIDENT_HOT(OURO_X)
#undef OURO_X

}  // namespace

const void* resident_entry(ResidentKernel kernel) {
  switch (kernel) {
#define OURO_X(name, ...)    \
  case ResidentKernel::name: \
    return reinterpret_cast<const void*>(&resident_##name);
    OURO_RESIDENT_HOT(OURO_X)
#undef OURO_X
#define OURO_X(name, ...) case ResidentKernel::name:
    OURO_RESIDENT_POINTERS(OURO_X)
#undef OURO_X
    return resident_pointer_entry(kernel);
#define OURO_X(name, ...) case ResidentKernel::name:
    OURO_RESIDENT_SWITCHED(OURO_X)
#undef OURO_X
    return resident_switch_entry(kernel);
#define OURO_X(name)         \
  case ResidentKernel::name: \
    return resident_##name##_entry();
    OURO_RESIDENT_COLD(OURO_X)
#undef OURO_X
  }
  return nullptr;
}

}  // namespace ouro::gpu
