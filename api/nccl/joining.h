// Joining the job of a unique id, also for communicators derived from existing ones. Used by init.cc
// and derive.cc.
#pragma once
#include "api/nccl/group_calls.h"
#include "api/nccl/unique_id.h"

namespace ouro::nccl {

/// Joins the job and opens `comm` on the group of all its ranks. Collective over these ranks.
ncclResult_t join(const char* function, ncclComm_t comm, int nranks, const Meeting&, int rank);

/// Makes `*out`: rank `rank` of `nranks` under a new id, on the device of `parent`. Collective over
/// these ranks.
ncclResult_t join_as(const char* function, ncclComm_t parent, const ncclUniqueId& id, int nranks, int rank,
                     const Config& config, ncclComm_t* out);

}  // namespace ouro::nccl
