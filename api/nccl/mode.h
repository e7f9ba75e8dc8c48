// Where buffers lie: on the host, or on GPUs. Used where communicators and memory are made.
#pragma once
#include <optional>

#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// Host mode: there is no GPU, or OURO_NCCL_HOST=1 says that they are not to be used.
bool host_mode();
/// Tells the mode once. ncclInvalidUsage, with a text, where there are GPUs that this build cannot work on.
ncclResult_t check_mode(const char* function);
/// Where a communicator's buffers lie: in host mode the host, with `asked` or 0 as its index; else GPU
/// `asked`, or the calling thread's current one. Errors: invalid (no such GPU), device.
Result<Device> device_for(std::optional<int> asked);

}  // namespace ouro::nccl
