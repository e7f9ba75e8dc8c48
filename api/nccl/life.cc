// Ending communicators. See nccl.h, section "Ending them".
#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, CommFinalize, ncclComm_t comm) {
  constexpr const char* me = "ncclCommFinalize";
  if (!comm) return ncclSuccess;
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    const Phase phase = comm->phase.load();
    if (phase == Phase::revoked)
      return invalid_usage(comm, me, "the communicator is revoked; destroy or abort it");
    if (phase != Phase::open) {
      if (const ncclResult_t wrong = check_open(comm, me); wrong != ncclSuccess) return wrong;
    }
    Job job;
    job.makes = false;
    job.drop = [] {};
    comm->phase.store(Phase::finalized);
    job.run = [=]() -> ncclResult_t {
      const Inside inside(comm);
      if (ouro::Status s = comm->group.close(); !s.ok()) return note(comm, me, s);
      comm->sent.store(false);  // all of it has been taken
      return ncclSuccess;
    };
    return begin(comm, std::move(job));
  }));
}

OURO_NCCL(ncclResult_t, CommDestroy, ncclComm_t comm) {
  constexpr const char* me = "ncclCommDestroy";
  if (!comm) return ncclSuccess;
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    if (comm->config.blocking) {
      Job job;
      job.makes = false;
      job.drop = [] {};
      job.run = [comm] {
        retire(comm);
        return ncclSuccess;
      };
      return begin(comm, std::move(job));
    }
    if (comm->pending.load() > 0 && comm->phase.load() == Phase::initialising)
      stop(comm, "destroyed while it was being made");
    retire(comm);
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommAbort, ncclComm_t comm) {
  constexpr const char* me = "ncclCommAbort";
  if (!comm) return ncclSuccess;
  return guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    if (GroupCalls* group = GroupCalls::current()) group->forget(comm);
    stop(comm, "ncclCommAbort");
    retire(comm);
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, CommRevoke, ncclComm_t comm, int revokeFlags) {
  constexpr const char* me = "ncclCommRevoke";
  if (!comm) return ncclSuccess;
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    if (revokeFlags != NCCL_REVOKE_DEFAULT)
      return invalid_argument(comm, me, "flags {:#x}; expected 0", revokeFlags);
    Phase open = Phase::open;
    if (!comm->phase.compare_exchange_strong(open, Phase::revoked))
      return invalid_argument(comm, me, "the communicator is {}; expected one that is open",
                              open == Phase::revoked     ? "revoked already"
                              : open == Phase::finalized ? "finalized"
                                                         : "not complete");
    if (GroupCalls* group = GroupCalls::current()) group->forget(comm);
    comm->group.abort("ncclCommRevoke");
    return ncclSuccess;
  }));
}
