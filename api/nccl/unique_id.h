// Unique ids: what ncclGetUniqueId hands out and ncclCommInitRank takes. Used by all that makes
// communicators.
#pragma once
#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// A new id: the name and secret of one job, and which host it was made on. Errors: resource (no random
/// numbers).
Result<ncclUniqueId> make_unique_id();

/// The job's name in an id, or in several, which then must be the same, in the same order, on all ranks.
/// Errors: invalid (made by another library), unsupported (made on another host).
Result<UniqueId> job_of(const ncclUniqueId* ids, int count);

}  // namespace ouro::nccl
