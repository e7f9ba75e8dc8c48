// What the environment says about this library: the version that it reports, and where buffers lie. See
// version.h and mode.h.
#include <dlfcn.h>

#include "api/nccl/environment.h"
#include "api/nccl/error.h"
#include "api/nccl/mode.h"
#include "api/nccl/version.h"
#include "ouro/ouro.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"

namespace ouro::nccl {

int reported_version() {
  auto version = env::integer("OURO_NCCL_VERSION");
  return version.ok() && *version ? static_cast<int>(**version) : NCCL_VERSION_CODE;
}

namespace {

/// Whether the driver of this machine has GPUs. It is asked itself, as this library has nothing of CUDA's in
/// it.
bool driver_has_gpus() {
  static const bool answer = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
    const auto count = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
    int devices = 0;
    return init && count && init(0) == 0 && count(&devices) == 0 && devices > 0;
  }();
  return answer;
}

}  // namespace

bool host_mode() {
  auto forced = env::flag("OURO_NCCL_HOST");
  return (forced.ok() && **forced) || (ouro_device_count() == 0 && !driver_has_gpus());
}

ncclResult_t check_mode(const char* function) {
  read_environment();
  if (auto forced = env::flag("OURO_NCCL_HOST"); !forced.ok())
    return fail(nullptr, function, forced.status());
  if (host_mode()) {
    static const bool told = [] {
      OURO_INFO(INIT, "libnccl of ouro {} in host mode: buffers are memory of the host", version());
      return true;
    }();
    return told ? ncclSuccess : ncclInternalError;
  }
  return not_supported(nullptr, function, "memory of GPUs behind nccl.h", "it is not there yet",
                       "set OURO_NCCL_HOST=1 to work on memory of the host, or use ouro's own interface");
}

}  // namespace ouro::nccl
