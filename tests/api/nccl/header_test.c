/* nccl.h by itself, as C99: sizes and places that programs were compiled with, and a call of each kind of
 * function. */
#include "nccl.h"

#include <stdio.h>

#define HOLDS(name, condition) typedef char holds_##name[(condition) ? 1 : -1]
HOLDS(id, sizeof(ncclUniqueId) == 128);
HOLDS(config, sizeof(ncclConfig_t) == 96);
HOLDS(magic, offsetof(ncclConfig_t, magic) == 8);
HOLDS(version, offsetof(ncclConfig_t, version) == 12);
HOLDS(blocking, offsetof(ncclConfig_t, blocking) == 16);
HOLDS(cga, offsetof(ncclConfig_t, cgaClusterSize) == 20);
HOLDS(min_ctas, offsetof(ncclConfig_t, minCTAs) == 24);
HOLDS(max_ctas, offsetof(ncclConfig_t, maxCTAs) == 28);
HOLDS(net, offsetof(ncclConfig_t, netName) == 32);
HOLDS(split, offsetof(ncclConfig_t, splitShare) == 40);
HOLDS(traffic, offsetof(ncclConfig_t, trafficClass) == 44);
HOLDS(name, offsetof(ncclConfig_t, commName) == 48);
HOLDS(collnet, offsetof(ncclConfig_t, collnetEnable) == 56);
HOLDS(policy, offsetof(ncclConfig_t, CTAPolicy) == 60);
HOLDS(shrink, offsetof(ncclConfig_t, shrinkShare) == 64);
HOLDS(nvls, offsetof(ncclConfig_t, nvlsCTAs) == 68);
HOLDS(channels, offsetof(ncclConfig_t, nChannelsPerNetPeer) == 72);
HOLDS(central, offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
HOLDS(sim, sizeof(ncclSimInfo_t) == 24 && offsetof(ncclSimInfo_t, estimatedTime) == 16);
HOLDS(ext, sizeof(ncclConfigExt_t) == 24);
HOLDS(coll, sizeof(ncclCollConfig_t) == 64);
HOLDS(coll_ext, offsetof(ncclCollConfig_t, ext) == 16);
HOLDS(coll_alg,
      offsetof(ncclCollConfig_t, algSelection) == 40 && offsetof(ncclCollConfig_t, CTAPolicy) == 52);
HOLDS(coll_tag, offsetof(ncclCollConfig_t, userProfilerTag) == 56);
HOLDS(properties, sizeof(ncclCommProperties_t) == 56 && offsetof(ncclCommProperties_t, nLsaTeams) == 40);
HOLDS(team, sizeof(ncclTeam_t) == 12);
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
