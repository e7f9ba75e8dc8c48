// The device entries of collect.h: movement, meeting and the hot reductions. Those of all other reductions
// are in fused_generic.cu and hop_generic.cu, so that each of the three units compiles in a fraction of a
// minute.
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu::collect {
namespace {

__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fused_move_kernel(const __grid_constant__ FusedArgs a) {
  fused_launch<DeviceBlock, fused_move<DeviceBlock>>(a, DeviceBlock{});
}
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    hop_move_kernel(const __grid_constant__ HopArgs a) {
  hop_move(a, DeviceBlock{});
}
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    gather_runs_kernel(const __grid_constant__ GatherArgs a) {
  gather_runs(a, DeviceBlock{});
}
__global__ void meet_kernel(const __grid_constant__ MeetArgs a) { meet(a, DeviceBlock{}); }
template <DType kType, OpKind kOp, int kRanks>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    fused_kernel(const __grid_constant__ FusedArgs a) {
  using R = arith::ReductionFor<kType, kOp>;
  fused_launch<DeviceBlock, fused_hot<R, kRanks, DeviceBlock>>(a, DeviceBlock{});
}
template <DType kType, OpKind kOp>
__global__ void __launch_bounds__(kThreads, kResidentBlocks) hop_kernel(const __grid_constant__ HopArgs a) {
  hop_hot<arith::ReductionFor<kType, kOp>>(a, DeviceBlock{});
}

template <class F>
const void* entry(F* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

Entries device_entries() {
  Entries e = {entry(fused_move_kernel), fused_generic_entry(),     entry(hop_move_kernel),
               hop_generic_entry(),      entry(gather_runs_kernel), entry(meet_kernel)};
  int i = 0;
#define OURO_X(t, op)                                               \
  e.fused_hot[i][0] = entry(fused_kernel<DType::t, OpKind::op, 2>); \
  e.fused_hot[i][1] = entry(fused_kernel<DType::t, OpKind::op, 4>); \
  e.fused_hot[i][2] = entry(fused_kernel<DType::t, OpKind::op, 8>); \
  e.fused_hot[i][3] = entry(fused_kernel<DType::t, OpKind::op, 0>); \
  e.hop_hot[i++] = entry(hop_kernel<DType::t, OpKind::op>);
  OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
  return e;
}

}  // namespace ouro::gpu::collect
