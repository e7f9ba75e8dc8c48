// Flows through a switch that reduces and multicasts (NVLink SHARP, which NCCL calls NVLS). Their steps are
// those of the direct flows, but the switch does the work: it reduces the chunk that a rank reads, in an
// unspecified order; and it multicasts the chunks that a rank posts as a result, or posts in a collective
// without reduction, into the staging buffers of all ranks at once, where each rank reads its own copy. Used
// through list.h.
#pragma once
#include "kernels/flow/direct.h"

namespace ouro::flow {

struct NvlsAllReduce : DirectAllReduce {
  static constexpr bool kSwitched = true, kCanonical = false;
};
struct NvlsReduceScatter : DirectReduceScatter {
  static constexpr bool kSwitched = true, kCanonical = false;
};
struct NvlsAllGather : DirectAllGather {
  static constexpr bool kSwitched = true;
};
struct NvlsBroadcast : DirectBroadcast {
  static constexpr bool kSwitched = true;
};

}  // namespace ouro::flow
