// Teams, which are computed from the hosts of the ranks, and the host side of the device interface, which is
// not supported. See nccl.h.
#include "api/nccl/group_calls.h"

using namespace ouro::nccl;

namespace {

constexpr const char* kWhy = "no kernel of the user's can reach another rank's memory through it";
constexpr const char* kInstead = "use collectives and messages";

/// The rank in the whole communicator of rank `rank` of `team`, which must contain this rank; -1:
/// no such rank.
int to_world(ncclComm_t comm, const char* function, ncclTeam_t team, int rank) {
  const Entry entry(comm, function);
  if (entry.wrong != ncclSuccess) return -1;
  const int world = comm->rank + (rank - team.rank) * team.stride;
  return rank < 0 || rank >= team.nRanks || world < 0 || world >= comm->size ? -1 : world;
}

ncclResult_t refused(const char* function, const char* what) {
  return report_to_group(
      guarded(nullptr, function, [&] { return not_supported(nullptr, function, what, kWhy, kInstead); }));
}
/// The same for a call on a communicator, which is checked first.
ncclResult_t refused(ncclComm_t comm, const char* function, const char* what) {
  return report_to_group(guarded(nullptr, function, [&]() -> ncclResult_t {
    const Entry entry(comm, function);
    return entry.wrong != ncclSuccess ? entry.wrong : not_supported(comm, function, what, kWhy, kInstead);
  }));
}

}  // namespace

OURO_NCCL(ncclTeam_t, TeamWorld, ncclComm_t comm) {
  const Entry entry(comm, "ncclTeamWorld");
  return entry.wrong != ncclSuccess ? ncclTeam_t{0, 0, 0} : ncclTeam_t{comm->size, comm->rank, 1};
}

OURO_NCCL(ncclTeam_t, TeamLsa, ncclComm_t comm) {
  const Entry entry(comm, "ncclTeamLsa");
  return entry.wrong != ncclSuccess ? ncclTeam_t{0, 0, 0} : ncclTeam_t{comm->lsa, comm->rank % comm->lsa, 1};
}

OURO_NCCL(ncclTeam_t, TeamRail, ncclComm_t comm) {
  const Entry entry(comm, "ncclTeamRail");
  if (entry.wrong != ncclSuccess) return {0, 0, 0};
  return {comm->size / comm->lsa, comm->rank / comm->lsa, comm->lsa};
}

OURO_NCCL(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank) {
  return to_world(comm, "ncclTeamRankToWorld", team, rank);
}

OURO_NCCL(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank) {
  const Entry entry(comm, "ncclTeamRankToLsa");
  if (entry.wrong != ncclSuccess) return -1;
  const int world = to_world(comm, "ncclTeamRankToLsa", team, rank);
  return world >= 0 && world / comm->lsa == comm->rank / comm->lsa ? world % comm->lsa : -1;
}

OURO_NCCL(int, LLA2ACalcSlots, int, int) {
  (void)refused("ncclLLA2ACalcSlots", "the device interface");
  return 0;
}

OURO_NCCL(ncclResult_t, DevCommCreate, ncclComm_t comm, const struct ncclDevCommRequirements*,
          struct ncclDevComm*) {
  return refused(comm, "ncclDevCommCreate", "a communicator for kernels");
}

OURO_NCCL(ncclResult_t, DevCommDestroy, ncclComm_t comm, const struct ncclDevComm* devComm) {
  if (!devComm) {
    const Entry entry(comm, "ncclDevCommDestroy");
    return report_to_group(entry.wrong);
  }
  return refused(comm, "ncclDevCommDestroy", "a communicator for kernels");
}

OURO_NCCL(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t, int, struct ncclLsaBarrierHandle*,
          struct ncclDevResourceRequirements*) {
  return refused("ncclLsaBarrierCreateRequirement", "the device interface");
}

OURO_NCCL(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t, int,
          struct ncclGinBarrierHandle*, struct ncclDevResourceRequirements*) {
  return refused(comm, "ncclGinBarrierCreateRequirement", "network traffic of kernels");
}

OURO_NCCL(ncclResult_t, LLA2ACreateRequirement, int, int, struct ncclLLA2AHandle*,
          struct ncclDevResourceRequirements*) {
  return refused("ncclLLA2ACreateRequirement", "the device interface");
}

OURO_NCCL(ncclResult_t, PutSignal, const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
          unsigned int, ncclComm_t comm, cudaStream_t) {
  return refused(comm, "ncclPutSignal", "a one-sided write");
}

OURO_NCCL(ncclResult_t, Signal, int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
  return refused(comm, "ncclSignal", "a one-sided signal");
}

OURO_NCCL(ncclResult_t, WaitSignal, int, ncclWaitSignalDesc_t*, ncclComm_t comm, cudaStream_t) {
  return refused(comm, "ncclWaitSignal", "a one-sided signal");
}
