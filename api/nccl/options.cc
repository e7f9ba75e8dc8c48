// The configuration of one collective. See arguments.h.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "api/nccl/arguments.h"

namespace ouro::nccl {

ncclResult_t set_options(const char* function, const ncclCollConfig_t* config, Call* call) {
  const ncclComm_t comm = call->comm;
  std::size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  if (size < offsetof(ncclCollConfig_t, minCTAs))
    return invalid_argument(comm, function,
                            "a config of {} bytes; expected {} or more (use NCCL_COLLCONFIG_INITIALIZER)",
                            size, sizeof *config);
  if (config->magic != NCCL_API_MAGIC)
    return invalid_argument(comm, function, "the config's magic number is {:#x}; expected {:#x}",
                            config->magic, NCCL_API_MAGIC);
  // The other fields tune NCCL's kernels: accepted and unused hints, like those of a communicator.
  for (const ncclConfigExt_t* option = config->ext; option; option = option->next) {
    if (option->key.vendorId != OURO_NCCL_VENDOR) continue;
    switch (option->key.optionId) {
      case OURO_NCCL_OPTION_NUMERICS:
        if (option->val.i != 0 && option->val.i != 1)
          return invalid_argument(comm, function, "option numerics is {}; expected 0 (fast) or 1 (canonical)",
                                  option->val.i);
        call->numerics = option->val.i == 1 ? Numerics::canonical : Numerics::fast;
        break;
      default:
        return invalid_argument(comm, function, "option {} of ouro does not exist; expected {} (numerics)",
                                option->key.optionId, OURO_NCCL_OPTION_NUMERICS);
    }
  }
  return ncclSuccess;
}

}  // namespace ouro::nccl
