// Unique ids: returned by ncclGetUniqueId, taken by ncclCommInitRank. Used by everything that
// makes communicators.
#pragma once
#include "api/nccl/exports.h"
#include "api/nccl/roll_call.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// The ranks an id is for: `several` processes, perhaps on several hosts, so that this process listens for
/// them; or this process alone.
enum class Reach : std::uint8_t { process, several };

/// Makes a new id: the name and secret of one job, and the address where its ranks report. With NCCL_COMM_ID,
/// all processes make the same ids in the same order. Errors: resource (no random numbers, no socket),
/// invalid (NCCL_COMM_ID, a wrong NCCL_SOCKET_FAMILY).
Result<ncclUniqueId> make_unique_id(Reach);

/// The decoded contents of an id.
struct Meeting {
  UniqueId job;
  RollId roll;
  bool process_alone = false;  ///< all ranks are in one process: no roll call
  /// The host where the id was made: if no process listens, all ranks are there; zero: unknown.
  HostKey made_on{};
  std::string why_here;  ///< if not empty, the id serves ranks of that host only; the reason why no other
                         ///< host reaches it
};

/// The address by which others reach this host, of the family that NCCL_SOCKET_FAMILY names. Errors: invalid.
Result<std::string> own_address();

/// Decodes one id, or several, which must be the same, in the same order, on all ranks. Errors: invalid (made
/// by another library).
Result<Meeting> meeting_of(const ncclUniqueId* ids, int count);

/// The host of this process, for rank `rank`: OURO_HOSTID, or the kernel's boot id and network namespace.
/// With NCCL_SHM_DISABLE=1, each rank counts as being on its own host.
Result<HostKey> own_host(int rank);

}  // namespace ouro::nccl
