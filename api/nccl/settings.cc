// Process-wide settings: the version that the library reports, and where buffers are located. See version.h
// and mode.h.
#include <dlfcn.h>

#include <mutex>

#include "api/nccl/environment.h"
#include "api/nccl/error.h"
#include "api/nccl/mode.h"
#include "api/nccl/version.h"
#include "kernels/device/gpu.h"
#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::nccl {

int reported_version() {
  auto version = env::integer("OURO_NCCL_VERSION");
  return version.ok() && *version ? static_cast<int>(**version) : NCCL_VERSION_CODE;
}

namespace {

/// Whether this machine's driver has GPUs. Queries the driver directly, because this library is not
/// linked with CUDA.
bool driver_has_gpus() {
  static constinit MadeOnce<const bool> answer;
  return answer.get([] {
    occupy_standard_descriptors();  // before the driver opens its devices
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
    const auto count = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
    int devices = 0;
    return init && count && init(0) == 0 && count(&devices) == 0 && devices > 0;
  });
}

}  // namespace

bool host_mode() {
  auto forced = env::flag("OURO_NCCL_HOST");
  return (forced.ok() && **forced) || (gpu::gpu().devices() == 0 && !driver_has_gpus());
}

ncclResult_t check_mode(const char* function) {
  if (const Status s = read_environment(); !s.ok()) return fail(nullptr, function, s);
  if (auto forced = env::flag("OURO_NCCL_HOST"); !forced.ok())
    return fail(nullptr, function, forced.status());
  const bool host = host_mode();
  if (!host && gpu::gpu().devices() == 0)
    return not_supported(nullptr, function, "memory of GPUs behind nccl.h", gpu::gpu().version().c_str(),
                         "set OURO_NCCL_HOST=1 to work on memory of the host");
  static std::once_flag once;
  std::call_once(once, [&] {
    OURO_INFO(INIT, "libnccl of ouro {} in {}", version(),
              host ? "host mode: buffers are memory of the host"
                   : fmt::format("GPU mode: buffers are memory of GPUs ({})", gpu::gpu().version()));
  });
  return ncclSuccess;
}

Result<Device> device_for(std::optional<int> asked) {
  if (host_mode()) return Device{Device::Kind::host, asked.value_or(0)};
  if (!asked) {
    OURO_ASSIGN(asked, gpu::gpu().current_device());
  }
  if (*asked < 0 || *asked >= gpu::gpu().devices())
    return invalid(fmt::format("GPU {}; this process sees {}", *asked, gpu::gpu().devices()));
  return Device{Device::Kind::cuda, *asked};
}

}  // namespace ouro::nccl
