// Symbolic verifier: runs the steps of all ranks on expressions instead of numbers and reports the first
// violation. Used by the proofs of the list's flows and by the planted mutants.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "kernels/flow/geometry.h"
#include "runtime/core/link_view.h"
#include "runtime/core/types.h"

namespace ouro::flow {

/// The steps of all ranks in one operation. Flows that are not pipelined have the steps of one round, which
/// are repeated.
struct Program {
  Collective collective = Collective::none;
  int size = 1, root = 0, rounds = 1, chunks = 1;
  bool pipelined = false, canonical = false, staging = false, multicast = false, by_reference = false,
       in_place = true, posts_others = false, posts_result = false, keeps = false;
  /// The cut into rounds and blocks; sizes have no meaning here.
  Cut cut() const { return {.pipelined = pipelined, .per_round = pipelined ? chunks / rounds : chunks}; }
  std::vector<std::vector<Step>> steps;  // by rank
  /// For mix, by rank: the weight of its own input, and the terms that follow it, in this order.
  std::vector<double> self;
  std::vector<std::vector<std::pair<int, double>>> in_neighbours;
};

/// The program of all ranks, where flow_of(r) is the flow of rank r; all flows have the same type.
template <class FlowOf>
Program record_each(Collective collective, int size, int root, int rounds, const FlowOf& flow_of) {
  using Flow = decltype(flow_of(0));
  Program p;
  p.collective = collective;
  p.size = size;
  p.root = root;
  p.rounds = rounds;
  p.chunks = flow_of(0).chunks(Place{0, size, root, rounds});
  p.pipelined = Flow::kPipelined;
  p.canonical = Flow::kCanonical;
  p.staging = Flow::kStaging;
  p.multicast = Flow::kMulticast;
  p.by_reference = Flow::kByReference;
  p.in_place = Flow::kInPlace;
  p.posts_others = Flow::kPostsOthers;
  p.posts_result = Flow::kPostsResult;
  p.keeps = Flow::kKeeps;
  p.steps.resize(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    const Flow flow = flow_of(r);
    flow(Place{r, size, root, rounds},
         [&](const Step& s) { p.steps[static_cast<std::size_t>(r)].push_back(s); });
    if (flow.chunks(Place{r, size, root, rounds}) != p.chunks) p.chunks = -1;
  }
  return p;
}
template <class Flow>
Program record(Collective collective, const Flow& flow, int size, int root, int rounds) {
  return record_each(collective, size, root, rounds, [&](int) { return flow; });
}

/// separate: input and output do not share memory. exact: chunk c of the input is at the place of chunk c of
/// the output. first_block: at the root of a gather or scatter, its own block is at the place of block 0.
enum class Aliasing { separate, exact, first_block };

struct Setting {
  int window = 2;  // slots of each link, at most kMaxWindow
  Aliasing aliasing = Aliasing::separate;
};
inline constexpr int kMaxWindow = 8, kMaxRanks = 64;
inline constexpr int kSlots = StagingView::kSlots;

/// Empty if all of this holds, else the first violation found:
///  - every rank ends, links hold at most `window` messages, and nothing is left in flight;
///  - every output has the value that the collective defines, is stored exactly once, and nothing else is
///    stored;
///  - every reduction has each rank's input once, with the same association on every rank (canonical: rank
///    order);
///  - only wide values are reduced, values are rounded once, and both ends of a link agree on what is sent;
///  - inputs are intact when they are read; no rank reads or writes another rank's registered memory while
///    it may change or after that rank has left;
///  - staging buffers: at most one post and then one result per round, in the order of rounds, in pages
///    that are reused once all ranks have released them; no rank accesses a round that it has released, and
///    all rounds are released.
/// Links and staging buffers are deterministic (one writer, blocking reads), so one interleaving represents
/// all of them.
std::string verify(const Program&, Setting);

/// The ways in which a user may lay out the buffers of this program.
std::vector<Aliasing> aliasings(const Program&);

/// The first violation in any layout with few or many slots; "" if there is none.
std::string refusal(const Program&);

}  // namespace ouro::flow
