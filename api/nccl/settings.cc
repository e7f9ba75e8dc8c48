// What the environment says about this library: the version that it reports, and where buffers lie. See
// version.h and mode.h.
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

bool host_mode() {
  auto forced = env::flag("OURO_NCCL_HOST");
  return (forced.ok() && **forced) || ouro_device_count() == 0;
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
