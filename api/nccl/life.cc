// Ending communicators. See nccl.h, section "Ending communicators".
#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, CommFinalize, ncclComm_t comm) {
  constexpr const char* me = "ncclCommFinalize";
  if (!comm) return ncclSuccess;
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    {
      const Entry entry(comm, me);
      if (entry.wrong != ncclSuccess) return entry.wrong;
      if (comm->phase.load() == Phase::revoked)
        return invalid_usage(comm, me, "the communicator is revoked; destroy or abort it");
    }
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    Job job{.comm = comm,
            .run = [=]() -> ncclResult_t {
              comm->streams.wait();
              if (ouro::Status s = comm->group.close(); !s.ok()) return note(comm, me, s);
              if (comm->group.failed())
                return note(comm, me, comm->group.status());  // not all data was delivered
              comm->sent.store(false);                        // peers have taken all messages
              return ncclSuccess;
            },
            .drop =
                [=] {
                  const Entry still(comm, me);
                  Phase finalized = Phase::finalized;
                  if (still.wrong == ncclSuccess)
                    (void)comm->phase.compare_exchange_strong(finalized, Phase::open);
                },
            .makes = false};
    comm->phase.store(Phase::finalized);
    return begin(std::move(job));
  }));
}

OURO_NCCL(ncclResult_t, CommDestroy, ncclComm_t comm) {
  constexpr const char* me = "ncclCommDestroy";
  if (!comm) return ncclSuccess;
  return report_to_group(guarded(nullptr, me, [&]() -> ncclResult_t {
    {
      const Entry entry(comm, me);
      if (entry.wrong != ncclSuccess) return entry.wrong;
    }
    Job job{.comm = comm,
            .run = [=]() -> ncclResult_t {
              if (retire(comm)) return ncclSuccess;
              return invalid_argument(nullptr, me, "the communicator has been destroyed or aborted");
            },
            .makes = false,
            .ends = true};
    const ncclResult_t result = begin(std::move(job));
    return result == ncclInProgress ? ncclSuccess : result;  // deferred: there is nothing left to poll
  }));
}

OURO_NCCL(ncclResult_t, CommAbort, ncclComm_t comm) {
  constexpr const char* me = "ncclCommAbort";
  if (!comm) return ncclSuccess;
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    {
      const Entry entry(comm, me);
      if (entry.wrong != ncclSuccess) return entry.wrong;
      if (GroupCalls* group = GroupCalls::current()) group->forget(comm, true);
      stop(comm, me);
    }
    (void)retire(comm);  // fails if another thread ends it at the same time
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, CommRevoke, ncclComm_t comm, int revokeFlags) {
  constexpr const char* me = "ncclCommRevoke";
  if (!comm) return ncclSuccess;
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (revokeFlags != NCCL_REVOKE_DEFAULT)
      return invalid_argument(comm, me, "flags {:#x}; expected 0", revokeFlags);
    Phase open = Phase::open;
    if (!comm->phase.compare_exchange_strong(open, Phase::revoked))
      return invalid_argument(comm, me, "the communicator is {}; expected one that is open",
                              open == Phase::revoked     ? "revoked already"
                              : open == Phase::finalized ? "finalized"
                                                         : "not complete");
    if (GroupCalls* group = GroupCalls::current()) group->forget(comm, false);
    comm->group.abort(me);
    return ncclSuccess;
  }));
}
