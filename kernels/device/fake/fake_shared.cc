// Sharing emulated devices within a process. See fake_shared.h.
#include "kernels/device/fake/fake_shared.h"

#include <dlfcn.h>

#include "kernels/device/fake/fake_gpu.h"

namespace ouro::gpu {

const char* fake::shared_build() { return OURO_DEVICE_BUILD; }

Gpu* emulated(int devices) {
  const auto owner = reinterpret_cast<fake::SharedDevices>(::dlsym(RTLD_DEFAULT, fake::kSharedDevices));
  if (owner != nullptr)
    if (Gpu* const theirs = owner(fake::shared_build())) return theirs;
  return new FakeGpu({.devices = devices, .multiprocessors = 16, .multicast = true});
}

}  // namespace ouro::gpu
