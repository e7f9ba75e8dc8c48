// Unique ids: what ncclGetUniqueId hands out and ncclCommInitRank takes. Used by all that makes
// communicators.
#pragma once
#include "api/nccl/exports.h"
#include "api/nccl/roll_call.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// Whose ranks an id is for: `several` hosts perhaps, so that this process listens for them, or this process
/// alone.
enum class Reach : std::uint8_t { process, several };

/// A new id: the name and secret of one job, and where its ranks report. With NCCL_COMM_ID the ids of all
/// processes are the same, in the order in which they are made. Errors: resource (no random numbers, no
/// socket), invalid (NCCL_COMM_ID, NCCL_SOCKET_FAMILY, no interface that can be used).
Result<ncclUniqueId> make_unique_id(Reach);

/// What is in an id.
struct Meeting {
  UniqueId job;
  RollId roll;
  bool process_alone = false;  ///< there is no roll call
  HostKey made_on{};           ///< where an id of this host was made: if nobody listens, all ranks are there
};

/// Of an id, or of several, which then must be the same, in the same order, on all ranks. Errors: invalid
/// (made by another library).
Result<Meeting> meeting_of(const ncclUniqueId* ids, int count);

/// The host that this process is on, for rank `rank`: OURO_HOSTID, or the kernel's boot id and network
/// namespace; with NCCL_SHM_DISABLE=1 each rank is on a host of its own.
Result<HostKey> own_host(int rank);

}  // namespace ouro::nccl
