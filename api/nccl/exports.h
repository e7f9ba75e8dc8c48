// Defines a function of nccl.h: the code as pncclX, and ncclX as a weak alias of it. Used by all sources
// of libnccl.
#pragma once
#include "api/nccl/nccl.h"

/// OURO_NCCL(ncclResult_t, CommCount, const ncclComm_t comm, int* count) { ... }. Calls within the library
/// never use ncclX, so interposed tools (profilers) see only the user's calls.
#define OURO_NCCL(type, name, ...)                                              \
  extern "C" __attribute__((visibility("default"), weak, alias("pnccl" #name))) \
  type nccl##name(__VA_ARGS__);                                                 \
  extern "C" __attribute__((visibility("default"))) type pnccl##name(__VA_ARGS__)
