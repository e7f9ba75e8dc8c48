// Teams, which are arithmetic, and the host's side of the device interface, which is not there. See nccl.h.
#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

namespace {

constexpr const char* kWhy = "no kernel of the user's can reach another rank's memory through it";
constexpr const char* kInstead = "use collectives and messages";

/// All ranks are on one host, so each has direct access to all others.
ncclTeam_t everyone(ncclComm_t comm, const char* function) {
  if (check(comm, function) != ncclSuccess) return {0, 0, 0};
  return {comm->size, comm->rank, 1};
}

/// The rank in the whole communicator of rank `rank` of `team`, which this rank is in; -1: there is none.
int to_world(ncclComm_t comm, const char* function, ncclTeam_t team, int rank) {
  if (check(comm, function) != ncclSuccess) return -1;
  const int world = comm->rank + (rank - team.rank) * team.stride;
  return rank < 0 || rank >= team.nRanks || world < 0 || world >= comm->size ? -1 : world;
}

ncclResult_t refused(ncclComm_t comm, const char* function, const char* what) {
  return told(guarded(comm, function, [&] { return not_supported(comm, function, what, kWhy, kInstead); }));
}

}  // namespace

OURO_NCCL(ncclTeam_t, TeamWorld, ncclComm_t comm) { return everyone(comm, "ncclTeamWorld"); }
OURO_NCCL(ncclTeam_t, TeamLsa, ncclComm_t comm) { return everyone(comm, "ncclTeamLsa"); }

OURO_NCCL(ncclTeam_t, TeamRail, ncclComm_t comm) {
  if (check(comm, "ncclTeamRail") != ncclSuccess) return {0, 0, 0};
  return {1, 0, comm->size};
}

OURO_NCCL(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank) {
  return to_world(comm, "ncclTeamRankToWorld", team, rank);
}

OURO_NCCL(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank) {
  return to_world(comm, "ncclTeamRankToLsa", team, rank);
}

OURO_NCCL(int, LLA2ACalcSlots, int, int) {
  (void)refused(nullptr, "ncclLLA2ACalcSlots", "the device interface");
  return 0;
}

OURO_NCCL(ncclResult_t, DevCommCreate, ncclComm_t comm, const struct ncclDevCommRequirements*,
          struct ncclDevComm*) {
  if (const ncclResult_t wrong = check(comm, "ncclDevCommCreate"); wrong != ncclSuccess) return told(wrong);
  return refused(comm, "ncclDevCommCreate", "a communicator for kernels");
}

OURO_NCCL(ncclResult_t, DevCommDestroy, ncclComm_t comm, const struct ncclDevComm* devComm) {
  if (const ncclResult_t wrong = check(comm, "ncclDevCommDestroy"); wrong != ncclSuccess) return told(wrong);
  if (!devComm) return ncclSuccess;
  return refused(comm, "ncclDevCommDestroy", "a communicator for kernels");
}

OURO_NCCL(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t, int, struct ncclLsaBarrierHandle*,
          struct ncclDevResourceRequirements*) {
  return refused(nullptr, "ncclLsaBarrierCreateRequirement", "the device interface");
}

OURO_NCCL(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t, int,
          struct ncclGinBarrierHandle*, struct ncclDevResourceRequirements*) {
  if (const ncclResult_t wrong = check(comm, "ncclGinBarrierCreateRequirement"); wrong != ncclSuccess)
    return told(wrong);
  return refused(comm, "ncclGinBarrierCreateRequirement", "network traffic of kernels");
}

OURO_NCCL(ncclResult_t, LLA2ACreateRequirement, int, int, struct ncclLLA2AHandle*,
          struct ncclDevResourceRequirements*) {
  return refused(nullptr, "ncclLLA2ACreateRequirement", "the device interface");
}

OURO_NCCL(ncclResult_t, PutSignal, const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
          unsigned int, ncclComm_t comm, cudaStream_t) {
  if (const ncclResult_t wrong = check(comm, "ncclPutSignal"); wrong != ncclSuccess) return told(wrong);
  return refused(comm, "ncclPutSignal", "a one-sided write");
}

OURO_NCCL(ncclResult_t, Signal, int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
  if (const ncclResult_t wrong = check(comm, "ncclSignal"); wrong != ncclSuccess) return told(wrong);
  return refused(comm, "ncclSignal", "a one-sided signal");
}

OURO_NCCL(ncclResult_t, WaitSignal, int, ncclWaitSignalDesc_t*, ncclComm_t comm, cudaStream_t) {
  if (const ncclResult_t wrong = check(comm, "ncclWaitSignal"); wrong != ncclSuccess) return told(wrong);
  return refused(comm, "ncclWaitSignal", "a one-sided signal");
}
