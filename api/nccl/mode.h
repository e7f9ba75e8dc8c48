// The location of buffers: on the host or on GPUs. Used where communicators and memory are made.
#pragma once
#include <optional>

#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// Host mode: there is no GPU, or OURO_NCCL_HOST=1 disables their use.
bool host_mode();
/// Logs the mode once. Returns ncclInvalidUsage, with a text, if there are GPUs that this build cannot use.
ncclResult_t check_mode(const char* function);
/// The location of a communicator's buffers. It is the host in host mode, with `asked` or 0 as its index;
/// else GPU `asked`, or by default the calling thread's current one. Errors: invalid (no such GPU), device.
Result<Device> device_for(std::optional<int> asked);

}  // namespace ouro::nccl
