// The one list of resident kernels, and what each runs. Used by resident_host.cc and resident.cu, which
// generate the host and device entries of a kernel.
#pragma once
#include "kernels/gpu/resident_many.h"
#include "kernels/gpu/resident_packets.h"
#include "kernels/gpu/resident_run.h"
#include "kernels/gpu/resident_switch.h"

namespace ouro::gpu {

/// X(name, collective, algorithm, struct, element type): sums with a kernel of their own.
#define OURO_RESIDENT_SUMS(X)                                                \
  X(ring_all_reduce_f32, all_reduce, ring, RingAllReduce, f32)               \
  X(ring_all_reduce_f16, all_reduce, ring, RingAllReduce, f16)               \
  X(ring_all_reduce_bf16, all_reduce, ring, RingAllReduce, bf16)             \
  X(ring_reduce_scatter_f32, reduce_scatter, ring, RingReduceScatter, f32)   \
  X(ring_reduce_scatter_f16, reduce_scatter, ring, RingReduceScatter, f16)   \
  X(ring_reduce_scatter_bf16, reduce_scatter, ring, RingReduceScatter, bf16) \
  X(direct_all_reduce_f32, all_reduce, direct, DirectAllReduce, f32)         \
  X(direct_all_reduce_f16, all_reduce, direct, DirectAllReduce, f16)         \
  X(direct_all_reduce_bf16, all_reduce, direct, DirectAllReduce, bf16)       \
  X(oneshot_all_reduce_f32, all_reduce, oneshot, OneShotAllReduce, f32)      \
  X(oneshot_all_reduce_f16, all_reduce, oneshot, OneShotAllReduce, f16)      \
  X(oneshot_all_reduce_bf16, all_reduce, oneshot, OneShotAllReduce, bf16)

/// X(name, collective, algorithm, struct): movement with a kernel of its own.
#define OURO_RESIDENT_MOVES(X)                        \
  X(ring_all_gather, all_gather, ring, RingAllGather) \
  X(chain_broadcast, broadcast, chain, ChainBroadcast)

/// X(name, collective, flow by pointer, flow over slots, element type): sums by pointer with a kernel
/// of their own.
#define OURO_RESIDENT_POINTER_SUMS(X)                                                            \
  X(pointer_all_reduce_f32, all_reduce, ZeroCopyAllReduce, DirectAllReduce, f32)                 \
  X(pointer_all_reduce_f16, all_reduce, ZeroCopyAllReduce, DirectAllReduce, f16)                 \
  X(pointer_all_reduce_bf16, all_reduce, ZeroCopyAllReduce, DirectAllReduce, bf16)               \
  X(pointer_reduce_scatter_f32, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, f32) \
  X(pointer_reduce_scatter_f16, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, f16) \
  X(pointer_reduce_scatter_bf16, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, bf16)

/// X(name, collective, flow by pointer, flow over slots): movement by pointer with a kernel of its own.
#define OURO_RESIDENT_POINTER_MOVES(X) X(pointer_all_gather, all_gather, ZeroCopyAllGather, DirectAllGather)

/// The same for blocks of any lengths, with the geometry UnevenCut.
#define OURO_RESIDENT_UNEVEN_SUMS(X)                                                            \
  X(uneven_reduce_scatter_f32, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, f32) \
  X(uneven_reduce_scatter_f16, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, f16) \
  X(uneven_reduce_scatter_bf16, reduce_scatter, ZeroCopyReduceScatter, DirectReduceScatter, bf16)
#define OURO_RESIDENT_UNEVEN_MOVES(X)                                  \
  X(uneven_all_gather, all_gather, ZeroCopyAllGather, DirectAllGather) \
  X(uneven_all_to_all, all_to_all, ZeroCopyAllToAll, PairwiseAllToAll)

/// X(name, element type): sums by packets with a kernel of their own.
#define OURO_RESIDENT_PACKETS(X) \
  X(packets_f32, f32)            \
  X(packets_f16, f16)            \
  X(packets_bf16, bf16)

/// X(name, operations of the switch): sums of types with a kernel of their own, all other
/// reductions, movement.
#define OURO_RESIDENT_SWITCHED(X)                  \
  X(switch_f32, (HotSwitch<DType::f32>{}))         \
  X(switch_f16, (HotSwitch<DType::f16>{}))         \
  X(switch_bf16, (HotSwitch<DType::bf16>{}))       \
  X(switch_any, (ColdSwitch{args.dtype, args.op})) \
  X(switch_moves, (SwitchMoves{size_of(args.dtype)}))

/// The body of each kernel as a function entry(args, block, shared), including those that serve all other
/// cases. There are few of the latter because each copy of the cold reductions costs a minute of build time.
struct ResidentEntries {
  template <DType kType>
  using SumOf = arith::ReductionFor<kType, OpKind::sum>;
#define OURO_X(name, c, a, Flow, type)                                                             \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_hot<Collective::c, flow::Flow>(args, block, shared, Hot<SumOf<DType::type>>{});            \
  }
  OURO_RESIDENT_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, a, Flow)                                                                   \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_hot<Collective::c, flow::Flow>(args, block, shared, Moved{size_of(args.dtype)});           \
  }
  OURO_RESIDENT_MOVES(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow, type)                                                     \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_by_pointer<Collective::c, flow::ByPointer, flow::Flow>(args, block, shared,                \
                                                               HotMany<SumOf<DType::type>>{});     \
  }
  OURO_RESIDENT_POINTER_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow)                                                           \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_by_pointer<Collective::c, flow::ByPointer, flow::Flow>(args, block, shared,                \
                                                               Moved{size_of(args.dtype)});        \
  }
  OURO_RESIDENT_POINTER_MOVES(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow, type)                                                            \
  template <class Block>                                                                                  \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) {        \
    run_by_pointer<Collective::c, flow::ByPointer, flow::Flow, UnevenCut>(args, block, shared,            \
                                                                          HotMany<SumOf<DType::type>>{}); \
  }
  OURO_RESIDENT_UNEVEN_SUMS(OURO_X)
#undef OURO_X
#define OURO_X(name, c, ByPointer, Flow)                                                               \
  template <class Block>                                                                               \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) {     \
    run_by_pointer<Collective::c, flow::ByPointer, flow::Flow, UnevenCut>(args, block, shared,         \
                                                                          Moved{size_of(args.dtype)}); \
  }
  OURO_RESIDENT_UNEVEN_MOVES(OURO_X)
#undef OURO_X
#define OURO_X(name, type)                                                                         \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_packets<SumOf<DType::type>>(args, block, shared);                                          \
  }
  OURO_RESIDENT_PACKETS(OURO_X)
#undef OURO_X
#define OURO_X(name, numbers)                                                                      \
  template <class Block>                                                                           \
  static OURO_HD void name(const ResidentArgs& args, const Block& block, ResidentShared& shared) { \
    run_switched(args, block, shared, numbers);                                                    \
  }
  OURO_RESIDENT_SWITCHED(OURO_X)
#undef OURO_X
  template <class Block>
  static OURO_HD void any_float(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
    run_cold(args, block, shared, cold<ColdTypes::floats>(args));
  }
  template <class Block>
  static OURO_HD void any_integer(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
    run_cold(args, block, shared, cold<ColdTypes::integers>(args));
  }
  template <class Block>
  static OURO_HD void any_moves(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
    run_cold(args, block, shared, Moved{size_of(args.dtype)});
  }
  template <class Block>
  static OURO_HD void any_packets(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
    run_packets(args, block, shared, cold<ColdTypes::all>(args));
  }

 private:
  template <ColdTypes kTypes>
  static OURO_HD Cold<kTypes> cold(const ResidentArgs& args) {
    return {args.dtype, args.op};
  }
};

/// What a launch runs: an entry, and what its last block writes when it has ended.
template <auto kEntry, class Block>
OURO_HD void run_and_end(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
  kEntry(args, block, shared);
  std::byte* const header = args.arena[args.rank];
  auto* const blocks = reinterpret_cast<std::uint32_t*>(header + ResidentLayout::kEndedAt);
  end_launch(LaunchEnd{.blocks = blocks, .ended = args.ended}, block, false);
}

/// X(name, ...) for every kernel.
#define OURO_RESIDENT_HOT(X) \
  OURO_RESIDENT_SUMS(X)      \
  OURO_RESIDENT_MOVES(X)     \
  OURO_RESIDENT_PACKETS(X)
#define OURO_RESIDENT_POINTERS(X) \
  OURO_RESIDENT_POINTER_SUMS(X)   \
  OURO_RESIDENT_POINTER_MOVES(X)  \
  OURO_RESIDENT_UNEVEN_SUMS(X)    \
  OURO_RESIDENT_UNEVEN_MOVES(X)
#define OURO_RESIDENT_COLD(X) X(any_float) X(any_integer) X(any_moves) X(any_packets)
#define OURO_RESIDENT_KERNELS(X) \
  OURO_RESIDENT_HOT(X)           \
  OURO_RESIDENT_POINTERS(X)      \
  OURO_RESIDENT_SWITCHED(X)      \
  OURO_RESIDENT_COLD(X)

enum class ResidentKernel : std::uint8_t {
#define OURO_X(name, ...) name,
  OURO_RESIDENT_KERNELS(OURO_X)
#undef OURO_X
};

/// The device entry; nullptr in a build without a CUDA compiler.
const void* resident_entry(ResidentKernel);
/// Entries compiled in units of their own, which have the same names; the first two serve all kernels by
/// pointer, and all kernels through a switch.
const void* resident_pointer_entry(ResidentKernel);
const void* resident_switch_entry(ResidentKernel);
const void* resident_any_float_entry();
const void* resident_any_integer_entry();
const void* resident_any_moves_entry();
const void* resident_any_packets_entry();

}  // namespace ouro::gpu
