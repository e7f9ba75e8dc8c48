// Whether buffers are memory at all: what NCCL_CHECK_POINTERS asks for. Used by group_calls.cc.
#pragma once
#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// ncclInvalidArgument, with the buffer and the address, where a buffer of the call on the host has pages
/// that are not mapped or cannot be read, or written where the call writes.
ncclResult_t check_pointers(const char* function, const Call&);

}  // namespace ouro::nccl
