// Flows through a switch that reduces and multicasts (NVLink SHARP, which NCCL calls NVLS). Their steps are
// those of the direct flows; what differs is who does the work: the chunk that a rank reduces comes out of
// the switch, reduced in an order that nobody promises, and what it posts as a result, or in a collective
// that only moves, lands in the staging buffers of all ranks at once, where each reads its own. Used through
// list.h.
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
