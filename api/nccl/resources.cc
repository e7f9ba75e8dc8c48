// What a communicator holds, and giving it back for a while. See nccl.h, section "Asking them".
#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  constexpr const char* me = "ncclCommMemStats";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    if (!value) return invalid_argument(comm, me, "the pointer for the answer is null");
    switch (stat) {
      case ncclStatGpuMemSuspend:
      case ncclStatGpuMemPersist:
      case ncclStatGpuMemTotal:
        *value = 0;  // in host mode no memory of a GPU is taken
        return ncclSuccess;
      case ncclStatGpuMemSuspended:
        *value = comm->suspended.load() ? 1 : 0;
        return ncclSuccess;
    }
    return invalid_argument(comm, me, "statistic {}; expected 0 to 3", static_cast<int>(stat));
  }));
}

OURO_NCCL(ncclResult_t, CommSuspend, ncclComm_t comm, int flags) {
  constexpr const char* me = "ncclCommSuspend";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check_open(comm, me); wrong != ncclSuccess) return wrong;
    if (flags != NCCL_SUSPEND_MEM)
      return invalid_argument(comm, me, "flags {:#x}; expected NCCL_SUSPEND_MEM", flags);
    comm->suspended.store(true);
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommResume, ncclComm_t comm) {
  constexpr const char* me = "ncclCommResume";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    if (!comm->suspended.exchange(false)) return invalid_usage(comm, me, "the communicator is not suspended");
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommQueryProperties, ncclComm_t comm, struct ncclCommProperties*) {
  constexpr const char* me = "ncclCommQueryProperties";
  return told(guarded(comm, me, [&]() -> ncclResult_t {
    if (const ncclResult_t wrong = check(comm, me); wrong != ncclSuccess) return wrong;
    return not_supported(comm, me, "the structure of properties",
                         "what it tells is of devices and their networks, which host mode has not",
                         "ask ncclCommCount, ncclCommUserRank and ncclCommCuDevice");
  }));
}
