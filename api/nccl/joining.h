// Joining the job of a unique id, for what makes communicators of existing ones, too. Used by init.cc and
// derive.cc.
#pragma once
#include "api/nccl/group_calls.h"

namespace ouro::nccl {

/// Makes `*out`: rank `rank` of `nranks` under a new id, with the device of `parent`. Collective over those
/// ranks.
ncclResult_t join_as(const char* function, ncclComm_t parent, const ncclUniqueId& id, int nranks, int rank,
                     const Config& config, ncclComm_t* out);

}  // namespace ouro::nccl
