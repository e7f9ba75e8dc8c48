/* nccl.h alone, as C99: the sizes and offsets that programs were compiled with, and a call of each kind of
 * function. */
#include "nccl.h"

#include <stdio.h>

#define HOLDS(name, condition) typedef char holds_##name[(condition) ? 1 : -1]
#define AT(type, field, offset) HOLDS(type##_##field, offsetof(type, field) == (offset))
HOLDS(id, sizeof(ncclUniqueId) == 128);
HOLDS(ncclConfig_t, sizeof(ncclConfig_t) == 96);
AT(ncclConfig_t, size, 0);
AT(ncclConfig_t, magic, 8);
AT(ncclConfig_t, version, 12);
AT(ncclConfig_t, blocking, 16);
AT(ncclConfig_t, cgaClusterSize, 20);
AT(ncclConfig_t, minCTAs, 24);
AT(ncclConfig_t, maxCTAs, 28);
AT(ncclConfig_t, netName, 32);
AT(ncclConfig_t, splitShare, 40);
AT(ncclConfig_t, trafficClass, 44);
AT(ncclConfig_t, commName, 48);
AT(ncclConfig_t, collnetEnable, 56);
AT(ncclConfig_t, CTAPolicy, 60);
AT(ncclConfig_t, shrinkShare, 64);
AT(ncclConfig_t, nvlsCTAs, 68);
AT(ncclConfig_t, nChannelsPerNetPeer, 72);
AT(ncclConfig_t, nvlinkCentricSched, 76);
AT(ncclConfig_t, graphUsageMode, 80);
AT(ncclConfig_t, numRmaCtx, 84);
AT(ncclConfig_t, maxP2pPeers, 88);
AT(ncclConfig_t, graphStreamOrdering, 92);
HOLDS(ncclSimInfo_t, sizeof(ncclSimInfo_t) == 24);
AT(ncclSimInfo_t, size, 0);
AT(ncclSimInfo_t, magic, 8);
AT(ncclSimInfo_t, version, 12);
AT(ncclSimInfo_t, estimatedTime, 16);
HOLDS(ncclConfigExt_t, sizeof(ncclConfigExt_t) == 24);
AT(ncclConfigExt_t, next, 0);
AT(ncclConfigExt_t, key, 8);
AT(ncclConfigExt_t, val, 16);
HOLDS(ext_option,
      offsetof(ncclConfigExt_t, key.vendorId) == 8 && offsetof(ncclConfigExt_t, key.optionId) == 12);
HOLDS(ncclCollConfig_t, sizeof(ncclCollConfig_t) == 64);
AT(ncclCollConfig_t, size, 0);
AT(ncclCollConfig_t, magic, 8);
AT(ncclCollConfig_t, version, 12);
AT(ncclCollConfig_t, ext, 16);
AT(ncclCollConfig_t, minCTAs, 24);
AT(ncclCollConfig_t, maxCTAs, 28);
AT(ncclCollConfig_t, nvlsCTAs, 32);
AT(ncclCollConfig_t, cgaClusterSize, 36);
AT(ncclCollConfig_t, algSelection, 40);
AT(ncclCollConfig_t, forceAlgSelection, 48);
AT(ncclCollConfig_t, CTAPolicy, 52);
AT(ncclCollConfig_t, userProfilerTag, 56);
HOLDS(ncclCommProperties_t, sizeof(ncclCommProperties_t) == 56);
AT(ncclCommProperties_t, size, 0);
AT(ncclCommProperties_t, magic, 8);
AT(ncclCommProperties_t, version, 12);
AT(ncclCommProperties_t, rank, 16);
AT(ncclCommProperties_t, nRanks, 20);
AT(ncclCommProperties_t, cudaDev, 24);
AT(ncclCommProperties_t, nvmlDev, 28);
AT(ncclCommProperties_t, deviceApiSupport, 32);
AT(ncclCommProperties_t, multimemSupport, 33);
AT(ncclCommProperties_t, ginType, 36);
AT(ncclCommProperties_t, nLsaTeams, 40);
AT(ncclCommProperties_t, hostRmaSupport, 44);
AT(ncclCommProperties_t, railedGinType, 48);
HOLDS(ncclTeam_t, sizeof(ncclTeam_t) == 12);
AT(ncclTeam_t, nRanks, 0);
AT(ncclTeam_t, rank, 4);
AT(ncclTeam_t, stride, 8);
HOLDS(ncclWaitSignalDesc_t, sizeof(ncclWaitSignalDesc_t) == 16);
AT(ncclWaitSignalDesc_t, opCnt, 0);
AT(ncclWaitSignalDesc_t, peer, 4);
AT(ncclWaitSignalDesc_t, sigIdx, 8);
AT(ncclWaitSignalDesc_t, ctx, 12);
HOLDS(ncclMultimemHandle_t, sizeof(ncclMultimemHandle_t) == 8);
AT(ncclMultimemHandle_t, mcBasePtr, 0);
HOLDS(enums, sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4 &&
                 sizeof(ncclScalarResidence_t) == 4 && sizeof(ncclCommMemStat_t) == 4);
HOLDS(codes, ncclInProgress == 7 && ncclRemoteError == 6 && ncclInvalidUsage == 5);
HOLDS(types,
      ncclBfloat16 == 9 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12 && ncclAvg == 4 && ncclNumOps == 5);
HOLDS(versions, NCCL_VERSION(2, 28, 9) == 22809 && NCCL_VERSION(2, 7, 8) == 2708);
HOLDS(code, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
  ncclCollConfig_t coll = NCCL_COLLCONFIG_INITIALIZER;
  int version = 0, profiled = 0;
  if (config.size != 96 || config.magic != NCCL_API_MAGIC || config.graphStreamOrdering != INT_MIN) return 2;
  if (sim.magic != 0x74685283 || coll.forceAlgSelection != 1 || coll.CTAPolicy != INT_MIN) return 3;
  if (ncclGetVersion(&version) != ncclSuccess || pncclGetVersion(&profiled) != ncclSuccess) return 4;
  if (version != NCCL_VERSION_CODE || profiled != version) return 5;
  printf("%s\n", ouro_nccl_identity());
  return 0;
}
