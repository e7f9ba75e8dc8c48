// The programs of resident kernels: one flow that is known at compile time, or any of the list; by pointer if
// all ranks can access all buffers. Used by resident_list.h.
#pragma once
#include "kernels/gpu/resident_body.h"

namespace ouro::gpu {

struct HopInLine {
  template <class Rank, class S>
  OURO_HD void operator()(Rank& rank, const S& s) const {
    rank.hop(s);
  }
};
struct HopOutOfLine {
  template <class Rank>
  OURO_HD_OUTLINE void operator()(Rank& rank, const flow::Step& s) const {
    rank.hop(s);
  }
};

/// One operation with a flow and a reduction that are known at compile time.
template <Collective kCollective, class Flow, class Numbers, class Block>
OURO_HD void run_hot(const ResidentArgs& args, const Block& block, ResidentShared& shared, Numbers numbers) {
  Resident<Numbers, Block> rank(args, block, shared, numbers);
  if (!rank.enter()) return;
  rank.template cut<Flow>(kCollective);
  rank.template run<Flow, HopInLine>();
  rank.leave();
}

/// Runs by pointer if every rank can access all buffers, else over slots; both in rank order, with
/// the same bits.
template <Collective kCollective, class ByPointer, class Flow, class Geometry = ResidentCut, class Numbers,
          class Block>
OURO_HD void run_by_pointer(const ResidentArgs& args, const Block& block, ResidentShared& shared,
                            Numbers numbers) {
  Resident<Numbers, Block, Geometry> rank(args, block, shared, numbers);
  if (!rank.enter()) return;
  if constexpr (Geometry::kUneven) rank.lay_out();
  const bool meets = !Geometry::kUneven || args.by_pointer;
  if (meets) rank.learn();
  if (meets && rank.meet()) {
    rank.template cut<ByPointer>(kCollective);
    rank.template run<ByPointer, HopInLine>();
  } else {
    rank.template cut<Flow>(kCollective);
    rank.template run<Flow, HopInLine>();
  }
  rank.leave();
}

/// The flows that resident kernels serve, except those through a switch, which have kernels of their own.
template <class Flow>
inline constexpr bool kResident =
    flow::kOnDevices<Flow> && !Flow::kInline && !Flow::kPulls && !Flow::kSwitched;

template <class Rank>
OURO_HD_OUTLINE void cut_outlined(Rank& rank, FlowShape flow, int chunks, Collective collective) {
  rank.cut(flow, chunks, collective);
}

/// Any operation that reduces, or any that moves, as Numbers does; chosen at run time. All flows share one
/// copy of the steps and of the cut: the time to compile a kernel grows with the square of its size.
template <class Numbers, class Block>
OURO_HD void run_cold(const ResidentArgs& args, const Block& block, ResidentShared& shared, Numbers numbers) {
  if constexpr (Numbers::kReduces)
    if (args.uneven)  // only reduce_scatter: uneven collectives that move data have kernels of their own
      return run_by_pointer<Collective::reduce_scatter, flow::ZeroCopyReduceScatter,
                            flow::DirectReduceScatter, UnevenCut>(args, block, shared, numbers);
  Resident<Numbers, Block> rank(args, block, shared, numbers);
  if (!rank.enter()) return;
  flow::Algorithm algorithm = args.algorithm;
  if (args.by_pointer) {
    rank.learn();
    if (rank.meet()) algorithm = flow::Algorithm::zerocopy;
  }
#define OURO_X(c, a, F)                                                                            \
  if constexpr (kResident<flow::F> && traits_of(Collective::c).reduces_all() == Numbers::kReduces) \
    if (args.collective == Collective::c && algorithm == flow::Algorithm::a) {                     \
      cut_outlined(rank, shape_of<flow::F>(),                                                      \
                   flow::F{}.chunks({args.rank, args.layout.ranks, args.root, 1}), Collective::c); \
      rank.template run<flow::F, HopOutOfLine>();                                                  \
    }
  OURO_FLOWS(OURO_X)
#undef OURO_X
  rank.leave();
}

}  // namespace ouro::gpu
