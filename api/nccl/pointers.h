// Checks that buffers are accessible memory, for NCCL_CHECK_POINTERS. Used by group_calls.cc.
#pragma once
#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Returns ncclInvalidArgument, naming the buffer and the address, if a host buffer of the call has pages
/// that are not mapped, not readable, or not writable although the call writes them.
ncclResult_t check_pointers(const char* function, const Call&);

}  // namespace ouro::nccl
