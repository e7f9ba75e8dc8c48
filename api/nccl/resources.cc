// Resources of a communicator, and suspending it. See nccl.h, section "Querying communicators".
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  constexpr const char* me = "ncclCommMemStats";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!value) return invalid_argument(comm, me, "the pointer for the answer is null");
    switch (stat) {
      case ncclStatGpuMemSuspend:
      case ncclStatGpuMemPersist:
      case ncclStatGpuMemTotal:
        if (on_gpu(comm))
          return not_supported(comm, me, "a count of the GPU's memory", "what is taken of it is not counted",
                               "ask the CUDA runtime for the memory that is left");
        *value = 0;  // host mode uses no GPU memory
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
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (flags != NCCL_SUSPEND_MEM)
      return invalid_argument(comm, me, "flags {:#x}; expected NCCL_SUSPEND_MEM", flags);
    if (on_gpu(comm))
      return not_supported(comm, me, "giving memory of the GPU back for a while",
                           "a communicator keeps it until it ends", "destroy the communicator");
    comm->suspended.store(true);
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommResume, ncclComm_t comm) {
  constexpr const char* me = "ncclCommResume";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!comm->suspended.exchange(false)) return invalid_usage(comm, me, "the communicator is not suspended");
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, CommQueryProperties, ncclComm_t comm, ncclCommProperties_t* props) {
  constexpr const char* me = "ncclCommQueryProperties";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!props) return invalid_argument(comm, me, "the pointer for the answer is null");
    constexpr std::size_t kHead = offsetof(ncclCommProperties_t, rank);
    if (props->size < kHead || props->magic != NCCL_API_MAGIC)
      return invalid_argument(
          comm, me, "size {} and magic number {:#x}; expected those of NCCL_COMM_PROPERTIES_INITIALIZER",
          props->size, props->magic);
    ncclCommProperties_t answer = NCCL_COMM_PROPERTIES_INITIALIZER;
    answer.rank = comm->rank, answer.nRanks = comm->size;
    answer.cudaDev = answer.nvmlDev = comm->place.index;
    answer.nLsaTeams = comm->size / comm->lsa;
    // Newer versions have more fields: the fields beyond these are zeroed, which denies every capability.
    char* const to = reinterpret_cast<char*>(props);
    std::memset(to + kHead, 0, props->size - kHead);
    std::memcpy(to + kHead, reinterpret_cast<const char*>(&answer) + kHead,
                std::min(props->size, sizeof answer) - kHead);
    return ncclSuccess;
  }));
}
