/* nccl.h: the interface of NCCL 2.30.7 (and the per-call configuration of 2.31) as ouro's libnccl.so.2
 * implements it. For programs written against NCCL; C99 and C++. Names, numbers and layouts match NCCL's
 * binary interface. Needs no CUDA toolkit; if there is one, its headers are included, as programs expect of
 * nccl.h. docs/nccl.md describes what each function does here and what is missing. */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* CUDA's types, if available: programs expect them here. OURO_NCCL_WITHOUT_CUDA leaves them out. */
#if defined(__has_include) && !defined(OURO_NCCL_WITHOUT_CUDA)
#if __has_include(<cuda_runtime.h>) && __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007
/* Versions up to 2.8 are written with four digits, later ones with five. */
#define NCCL_VERSION(X, Y, Z) (((X) > 2 || (Y) > 8) ? (X)*10000 + (Y)*100 + (Z) : (X)*1000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* cudaStream_t;

/* ---- handles and constants -------------------------------------------------------------------- */

typedef struct ncclComm* ncclComm_t;            /* one rank of a communicator */
typedef struct ncclWindow_vidmem* ncclWindow_t; /* a registered buffer */
typedef struct ncclParamHandle* ncclParamHandle_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
/* Identifies a communicator that is about to be created; opaque, passed by value. */
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8, /* never returned here: programs built against versions before 2.30 do not know it */
  ncclNumResults = 9
} ncclResult_t;

/* clang-format off */
typedef enum {
  ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1, ncclInt32 = 2, ncclInt = 2, ncclUint32 = 3, ncclInt64 = 4, ncclUint64 = 5,
  ncclFloat16 = 6, ncclHalf = 6, ncclFloat32 = 7, ncclFloat = 7, ncclFloat64 = 8, ncclDouble = 8,
  ncclBfloat16 = 9, ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11, ncclNumTypes = 12
} ncclDataType_t;
/* clang-format on */

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,           /* the first value that ncclRedOpCreatePreMulSum returns */
  ncclMaxRedOp = 0x7fffffff /* the last such value */
} ncclRedOp_t;

typedef enum {
  ncclScalarDevice = 0,       /* read when the operation runs */
  ncclScalarHostImmediate = 1 /* read before ncclRedOpCreatePreMulSum returns */
} ncclScalarResidence_t;

#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

/* ---- structures that contain their size and version ------------------------------------------- */

#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT (-1.0f)

/* How a communicator is created. Fill it with NCCL_CONFIG_INITIALIZER, then set what differs. */
typedef struct ncclConfig_v23007 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;       /* 2.14: 0: calls return ncclInProgress; poll ncclCommGetAsyncError for the outcome */
  int cgaClusterSize; /* 2.17 */
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;       /* 2.18: 1: children of ncclCommSplit share this communicator's fate */
  int trafficClass;     /* 2.26 */
  const char* commName; /* 2.27: appears in messages */
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer; /* 2.28 */
  int nvlinkCentricSched;
  int graphUsageMode; /* 2.29 */
  int numRmaCtx;
  int maxP2pPeers;         /* 2.30.3 */
  int graphStreamOrdering; /* 2.30.7 */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                         \
  {                                                                                                     \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL,  \
        INT_MIN, INT_MIN, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, \
        INT_MIN, INT_MIN                                                                                \
  }

/* The result of ncclGroupSimulateEnd. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;
#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

/* One library-specific option in the list of a ncclCollConfig_t. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

/* Configuration of one collective call (2.31). */
typedef struct ncclCollConfig_v23100 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
} ncclCollConfig_t;
#define NCCL_COLLCONFIG_INITIALIZER                                                                        \
  {                                                                                                        \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, \
        NULL, 1, INT_MIN, 0                                                                                \
  }

/* Identifies ouro's options in `ext`; options of other vendors are skipped. */
#define OURO_NCCL_VENDOR 0x6F7572
#define OURO_NCCL_OPTION_NUMERICS 2 /* val.i: 0 fast, 1 canonical */

/* clang-format off */
typedef enum {
  ncclStatGpuMemSuspend = 0, ncclStatGpuMemSuspended = 1, ncclStatGpuMemPersist = 2, ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef struct { int opCnt, peer, sigIdx, ctx; } ncclWaitSignalDesc_t;
/* clang-format on */

/* A team of ranks: its rank i is rank first + i * stride of the communicator. */
typedef struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
} ncclTeam_t;

typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;

/* The capabilities of a communicator. Fill it with NCCL_COMM_PROPERTIES_INITIALIZER; at most `size` bytes are
 * written. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  int ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
} ncclCommProperties_t;
#define NCCL_COMM_PROPERTIES_INITIALIZER                                                                    \
  {                                                                                                         \
    sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, 0, 0, false, \
        0                                                                                                   \
  }

/* Types of the device interface, which is not supported: only pointers to them are passed. */
struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;
struct ncclLsaBarrierHandle;
struct ncclGinBarrierHandle;
struct ncclLLA2AHandle;

/* ---- functions -------------------------------------------------------------------------------- */

/* Each function exists twice, as ncclX (weak, so that tools can interpose) and as pncclX. */
#define OURO_NCCL_DECLARE(type, name, args) \
  type nccl##name args;                     \
  type pnccl##name args

/* Version and errors. */
OURO_NCCL_DECLARE(ncclResult_t, GetVersion, (int* version));
OURO_NCCL_DECLARE(const char*, GetErrorString, (ncclResult_t result));
OURO_NCCL_DECLARE(const char*, GetLastError, (ncclComm_t comm));
OURO_NCCL_DECLARE(void, ResetDebugInit, (void));

/* Making communicators. */
OURO_NCCL_DECLARE(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId));
OURO_NCCL_DECLARE(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
OURO_NCCL_DECLARE(ncclResult_t, CommInitRankConfig,
                  (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config));
OURO_NCCL_DECLARE(ncclResult_t, CommInitRankScalable,
                  (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                   ncclConfig_t* config));
OURO_NCCL_DECLARE(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int* devlist));
OURO_NCCL_DECLARE(ncclResult_t, CommSplit,
                  (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config));
OURO_NCCL_DECLARE(ncclResult_t, CommShrink,
                  (ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                   ncclConfig_t* config, int shrinkFlags));
OURO_NCCL_DECLARE(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId* uniqueId));
OURO_NCCL_DECLARE(ncclResult_t, CommGrow,
                  (ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                   ncclConfig_t* config));

/* Ending communicators. */
OURO_NCCL_DECLARE(ncclResult_t, CommFinalize, (ncclComm_t comm));
OURO_NCCL_DECLARE(ncclResult_t, CommDestroy, (ncclComm_t comm));
OURO_NCCL_DECLARE(ncclResult_t, CommAbort, (ncclComm_t comm));
OURO_NCCL_DECLARE(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags));

/* Querying communicators. */
OURO_NCCL_DECLARE(ncclResult_t, CommCount, (const ncclComm_t comm, int* count));
OURO_NCCL_DECLARE(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int* device));
OURO_NCCL_DECLARE(ncclResult_t, CommUserRank, (const ncclComm_t comm, int* rank));
OURO_NCCL_DECLARE(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError));
OURO_NCCL_DECLARE(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t* props));
OURO_NCCL_DECLARE(ncclResult_t, CommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value));
OURO_NCCL_DECLARE(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags));
OURO_NCCL_DECLARE(ncclResult_t, CommResume, (ncclComm_t comm));

/* Memory. */
OURO_NCCL_DECLARE(ncclResult_t, MemAlloc, (void** ptr, size_t size));
OURO_NCCL_DECLARE(ncclResult_t, MemFree, (void* ptr));
OURO_NCCL_DECLARE(ncclResult_t, CommRegister,
                  (const ncclComm_t comm, void* buff, size_t size, void** handle));
OURO_NCCL_DECLARE(ncclResult_t, CommDeregister, (const ncclComm_t comm, void* handle));
OURO_NCCL_DECLARE(ncclResult_t, CommWindowRegister,
                  (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags));
OURO_NCCL_DECLARE(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
OURO_NCCL_DECLARE(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void** outUserPtr));
OURO_NCCL_DECLARE(ncclResult_t, GetLsaDevicePointer,
                  (ncclWindow_t window, size_t offset, int lsaRank, void** outPtr));
OURO_NCCL_DECLARE(ncclResult_t, GetLsaMultimemDevicePointer,
                  (ncclWindow_t window, size_t offset, void** outPtr));
OURO_NCCL_DECLARE(ncclResult_t, GetPeerDevicePointer,
                  (ncclWindow_t window, size_t offset, int peer, void** outPtr));

/* User-defined reductions. */
OURO_NCCL_DECLARE(ncclResult_t, RedOpCreatePreMulSum,
                  (ncclRedOp_t * op, void* scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                   ncclComm_t comm));
OURO_NCCL_DECLARE(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Collectives, each also with a per-call configuration. */
#define OURO_NCCL_DECLARE_COLLECTIVE(name, ...)                                               \
  OURO_NCCL_DECLARE(ncclResult_t, name, (__VA_ARGS__, ncclComm_t comm, cudaStream_t stream)); \
  OURO_NCCL_DECLARE(ncclResult_t, name##Config,                                               \
                    (__VA_ARGS__, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config))
OURO_NCCL_DECLARE_COLLECTIVE(AllReduce, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype, ncclRedOp_t op);
OURO_NCCL_DECLARE_COLLECTIVE(Reduce, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype, ncclRedOp_t op, int root);
OURO_NCCL_DECLARE_COLLECTIVE(Broadcast, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype, int root);
OURO_NCCL_DECLARE_COLLECTIVE(AllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
                             ncclDataType_t datatype);
OURO_NCCL_DECLARE_COLLECTIVE(ReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
                             ncclDataType_t datatype, ncclRedOp_t op);
OURO_NCCL_DECLARE_COLLECTIVE(AlltoAll, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype);
OURO_NCCL_DECLARE_COLLECTIVE(Gather, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype, int root);
OURO_NCCL_DECLARE_COLLECTIVE(Scatter, const void* sendbuff, void* recvbuff, size_t count,
                             ncclDataType_t datatype, int root);
OURO_NCCL_DECLARE(ncclResult_t, Bcast,
                  (void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                   cudaStream_t stream));

/* Messages. */
OURO_NCCL_DECLARE(ncclResult_t, Send,
                  (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                   cudaStream_t stream));
OURO_NCCL_DECLARE(ncclResult_t, Recv,
                  (void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                   cudaStream_t stream));
OURO_NCCL_DECLARE(ncclResult_t, PutSignal,
                  (const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                   ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                   ncclComm_t comm, cudaStream_t stream));
OURO_NCCL_DECLARE(ncclResult_t, Signal,
                  (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
OURO_NCCL_DECLARE(ncclResult_t, WaitSignal,
                  (int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream));

/* Groups of calls. */
OURO_NCCL_DECLARE(ncclResult_t, GroupStart, (void));
OURO_NCCL_DECLARE(ncclResult_t, GroupEnd, (void));
OURO_NCCL_DECLARE(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo));

/* Teams, and the host side of the device interface. */
OURO_NCCL_DECLARE(ncclTeam_t, TeamWorld, (ncclComm_t comm));
OURO_NCCL_DECLARE(ncclTeam_t, TeamLsa, (ncclComm_t comm));
OURO_NCCL_DECLARE(ncclTeam_t, TeamRail, (ncclComm_t comm));
OURO_NCCL_DECLARE(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
OURO_NCCL_DECLARE(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));
OURO_NCCL_DECLARE(ncclResult_t, GetMultimemDevicePointer,
                  (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void** outPtr));
OURO_NCCL_DECLARE(ncclResult_t, DevCommCreate,
                  (ncclComm_t comm, const struct ncclDevCommRequirements* reqs,
                   struct ncclDevComm* outDevComm));
OURO_NCCL_DECLARE(ncclResult_t, DevCommDestroy, (ncclComm_t comm, const struct ncclDevComm* devComm));
OURO_NCCL_DECLARE(ncclResult_t, LsaBarrierCreateRequirement,
                  (ncclTeam_t team, int nBarriers, struct ncclLsaBarrierHandle* outHandle,
                   struct ncclDevResourceRequirements* outReq));
OURO_NCCL_DECLARE(ncclResult_t, GinBarrierCreateRequirement,
                  (ncclComm_t comm, ncclTeam_t team, int nBarriers, struct ncclGinBarrierHandle* outHandle,
                   struct ncclDevResourceRequirements* outReq));
OURO_NCCL_DECLARE(ncclResult_t, LLA2ACreateRequirement,
                  (int nBlocks, int nSlots, struct ncclLLA2AHandle* outHandle,
                   struct ncclDevResourceRequirements* outReq));
OURO_NCCL_DECLARE(int, LLA2ACalcSlots, (int maxElts, int maxEltSize));

/* Parameters: the settings of ouro by name (OURO_...), as `ouro-info -c` prints them. */
OURO_NCCL_DECLARE(ncclResult_t, ParamBind, (ncclParamHandle_t * out, const char* key));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetI8, (ncclParamHandle_t h, int8_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetI16, (ncclParamHandle_t h, int16_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetI32, (ncclParamHandle_t h, int32_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetI64, (ncclParamHandle_t h, int64_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetU8, (ncclParamHandle_t h, uint8_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetU16, (ncclParamHandle_t h, uint16_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetU32, (ncclParamHandle_t h, uint32_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetU64, (ncclParamHandle_t h, uint64_t* out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetStr, (ncclParamHandle_t h, const char** out));
OURO_NCCL_DECLARE(ncclResult_t, ParamGet, (ncclParamHandle_t h, void* out, int maxLen, int* len));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetParameter, (const char* key, const char** value, int* valueLen));
OURO_NCCL_DECLARE(ncclResult_t, ParamGetAllParameterKeys, (const char*** table, int* tableLen));
OURO_NCCL_DECLARE(void, ParamDumpAll, (void));

/* Identifies this library: "ouro 0.1.0 /path/to/libnccl.so.2, NCCL interface 2.30.7". NVIDIA's library has no
 * symbol of this name. */
const char* ouro_nccl_identity(void);

#ifdef __cplusplus
}
#endif
#endif
