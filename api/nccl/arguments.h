// Converts and checks types, reductions and per-call options of nccl.h for the C++ interface. Used by
// the operations.
#pragma once
#include <optional>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// The element type; nullopt: no such type.
std::optional<DType> dtype_of(ncclDataType_t);

/// Sets the call's reduction to `op` on `type`, either one of NCCL's or one that the user made on
/// `call->comm`. Errors: ncclInvalidArgument.
ncclResult_t set_reduction(const char* function, ncclRedOp_t op, ncclDataType_t type, Call* call);

/// The reduction of a user-defined factor: reads exactly one element of `type` at `from`.
ReduceOp premultiplied(const void* from, DType type);

/// Sets what a ncclCollConfig_t requests in the call. Errors: ncclInvalidArgument (size, magic, a value, an
/// unknown option of ouro).
ncclResult_t set_options(const char* function, const ncclCollConfig_t*, Call* call);

}  // namespace ouro::nccl
