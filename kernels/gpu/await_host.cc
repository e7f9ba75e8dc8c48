// The host side of the kernel that waits for the host. See await_host.h.
#include "kernels/gpu/await_host.h"

#include "kernels/gpu/await_host_body.h"

namespace ouro::gpu {

const Kernel& awaiting_kernel() {
  static const Kernel kernel = {
      .name = "await_host",
      .device = await_host_entry(),
      .host =
          [](const void* args, int block, int blocks) {
            await_host(*static_cast<const AwaitHostArgs*>(args), HostBlock{block, blocks});
          },
      .arg_bytes = sizeof(AwaitHostArgs),
      .spins = true};
  return kernel;
}

Launch await_host(const AwaitHostArgs&) { return {&awaiting_kernel(), {1, kAwaitThreads}}; }

}  // namespace ouro::gpu
