// The device entry of await_host.h.
#include "kernels/gpu/await_host_body.h"

namespace ouro::gpu {
namespace {

__global__ void __launch_bounds__(kAwaitThreads) await_host_kernel(const __grid_constant__ AwaitHostArgs a) {
  await_host(a, DeviceBlock{});
}

}  // namespace

const void* await_host_entry() { return reinterpret_cast<const void*>(&await_host_kernel); }

}  // namespace ouro::gpu
