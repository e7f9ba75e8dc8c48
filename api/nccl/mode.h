// Where buffers lie: on the host, or on GPUs. Used where communicators and memory are made.
#pragma once
#include "api/nccl/exports.h"

namespace ouro::nccl {

/// Host mode: there is no GPU, or OURO_NCCL_HOST=1 says that they are not to be used.
bool host_mode();
/// ncclInvalidUsage, with a text, where this process would have to work on GPUs.
ncclResult_t check_mode(const char* function);

}  // namespace ouro::nccl
