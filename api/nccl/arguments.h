// Types, reductions and counts of nccl.h as the C++ interface has them, checked. Used by the operations.
#pragma once
#include <optional>

#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// nullopt: there is no such type.
std::optional<DType> dtype_of(ncclDataType_t);

/// The reduction `op` on `type`, one of NCCL's or one that the user made on `call->comm`, goes into the call.
/// Errors: ncclInvalidArgument.
ncclResult_t set_reduction(const char* function, ncclRedOp_t op, ncclDataType_t type, Call* call);

/// The factor of a user's reduction: exactly one element of `type` at `from` is read.
ReduceOp premultiplied(const void* from, DType type);

/// What a ncclCollConfig_t asks for goes into the call. Errors: ncclInvalidArgument (size, magic, a value),
/// and ncclInvalidUsage for options of ouro that are not there.
ncclResult_t set_options(const char* function, const ncclCollConfig_t*, Call* call);

}  // namespace ouro::nccl
