// The one list of flows: which one serves which collective under which name, and what data it is constructed
// from. Used by selection, executors, the verifier, the simulator and the bench; an algorithm exists if it is
// listed here.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "kernels/flow/barrier.h"
#include "kernels/flow/chain.h"
#include "kernels/flow/direct.h"
#include "kernels/flow/exchange.h"
#include "kernels/flow/gossip.h"
#include "kernels/flow/halving.h"
#include "kernels/flow/hierarchy.h"
#include "kernels/flow/hierarchy_tree.h"
#include "kernels/flow/nvls.h"
#include "kernels/flow/pairwise.h"
#include "kernels/flow/ring.h"
#include "kernels/flow/tree.h"
#include "runtime/core/types.h"

namespace ouro::flow {

/// X(enumerator, name, older name): algorithms by the names that OURO_ALGO, CallOptions and the tools accept.
// clang-format off
#define OURO_ALGORITHMS(X)                                                     \
  X(ring, "ring", "") X(chain, "chain", "") X(tree, "tree", "") X(halving, "halving", "")           \
  X(inlined, "inline", "line") X(oneshot, "oneshot", "") X(direct, "direct", "")                    \
  X(zerocopy, "zerocopy", "inplace") X(pull, "pull", "")                                            \
  X(pairwise, "pairwise", "") X(linear, "linear", "") X(dissemination, "dissemination", "")         \
  X(exchange, "exchange", "") X(hierarchy, "hierarchy", "") X(hierarchy_tree, "hierarchy_tree", "") \
  X(gossip, "gossip", "") X(nvls, "nvls", "")
// clang-format on

/// X(collective, algorithm, struct)
#define OURO_FLOWS(X)                                   \
  X(all_reduce, ring, RingAllReduce)                    \
  X(all_reduce, chain, ChainAllReduce)                  \
  X(all_reduce, tree, TreeAllReduce)                    \
  X(all_reduce, halving, HalvingAllReduce)              \
  X(all_reduce, inlined, InlineAllReduce)               \
  X(all_reduce, oneshot, OneShotAllReduce)              \
  X(all_reduce, direct, DirectAllReduce)                \
  X(all_reduce, zerocopy, ZeroCopyAllReduce)            \
  X(all_reduce, pull, PullAllReduce)                    \
  X(reduce_scatter, ring, RingReduceScatter)            \
  X(reduce_scatter, chain, ChainReduceScatter)          \
  X(reduce_scatter, direct, DirectReduceScatter)        \
  X(reduce_scatter, zerocopy, ZeroCopyReduceScatter)    \
  X(reduce_scatter, pull, PullReduceScatter)            \
  X(all_gather, ring, RingAllGather)                    \
  X(all_gather, direct, DirectAllGather)                \
  X(all_gather, zerocopy, ZeroCopyAllGather)            \
  X(all_gather, pull, PullAllGather)                    \
  X(broadcast, chain, ChainBroadcast)                   \
  X(broadcast, tree, TreeBroadcast)                     \
  X(broadcast, inlined, InlineBroadcast)                \
  X(broadcast, direct, DirectBroadcast)                 \
  X(broadcast, zerocopy, ZeroCopyBroadcast)             \
  X(broadcast, pull, PullBroadcast)                     \
  X(reduce, chain, ChainReduce)                         \
  X(reduce, tree, TreeReduce)                           \
  X(reduce, direct, DirectReduce)                       \
  X(reduce, zerocopy, ZeroCopyReduce)                   \
  X(gather, linear, LinearGather)                       \
  X(gather, direct, DirectGather)                       \
  X(gather, zerocopy, ZeroCopyGather)                   \
  X(scatter, linear, LinearScatter)                     \
  X(scatter, direct, DirectScatter)                     \
  X(scatter, zerocopy, ZeroCopyScatter)                 \
  X(all_to_all, pairwise, PairwiseAllToAll)             \
  X(all_to_all, direct, DirectAllToAll)                 \
  X(all_to_all, zerocopy, ZeroCopyAllToAll)             \
  X(all_to_all, pull, PullAllToAll)                     \
  X(barrier, dissemination, DisseminationBarrier)       \
  X(barrier, direct, DirectBarrier)                     \
  X(all_reduce, exchange, ExchangeAllReduce)            \
  X(all_reduce, hierarchy, HierarchyAllReduce)          \
  X(all_reduce, hierarchy_tree, HierarchyTreeAllReduce) \
  X(reduce_scatter, hierarchy, HierarchyReduceScatter)  \
  X(all_gather, hierarchy, HierarchyAllGather)          \
  X(broadcast, hierarchy, HierarchyBroadcast)           \
  X(broadcast, hierarchy_tree, HierarchyTreeBroadcast)  \
  X(reduce, hierarchy, HierarchyReduce)                 \
  X(reduce, hierarchy_tree, HierarchyTreeReduce)        \
  X(barrier, hierarchy, HierarchyBarrier)               \
  X(mix, gossip, Gossip)                                \
  X(all_reduce, nvls, NvlsAllReduce)                    \
  X(reduce_scatter, nvls, NvlsReduceScatter)            \
  X(all_gather, nvls, NvlsAllGather)                    \
  X(broadcast, nvls, NvlsBroadcast)

enum class Algorithm : std::uint8_t {
#define OURO_X(a, text, former) a,
  OURO_ALGORITHMS(OURO_X)
#undef OURO_X
};

#define OURO_X(a, text, former) +1
inline constexpr int kAlgorithms = OURO_ALGORITHMS(OURO_X);
#undef OURO_X
static_assert(kAlgorithms < 31, "signatures have five bits for them");

constexpr std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
#define OURO_X(a, text, former) \
  case Algorithm::a:            \
    return text;
    OURO_ALGORITHMS(OURO_X)
#undef OURO_X
  }
  return "?";
}

constexpr std::optional<Algorithm> parse_algorithm(std::string_view name) {
#define OURO_X(a, text, former) \
  if (!name.empty() && (name == text || name == former)) return Algorithm::a;
  OURO_ALGORITHMS(OURO_X)
#undef OURO_X
  return std::nullopt;
}

/// The data that flows are constructed from. The caller fills in the data of its group and call; an empty
/// layout means one host, an empty row a rank without neighbours.
struct FlowData {
  HostLayout hosts = {};
  NeighbourRow row = {};
};
template <class Flow>
constexpr Flow made(const FlowData& data) {
  if constexpr (std::is_same_v<typename Flow::Data, HostLayout>)
    return Flow{{}, data.hosts};
  else if constexpr (std::is_same_v<typename Flow::Data, NeighbourRow>)
    return Flow{{}, data.row};
  else
    return Flow{};
}

/// Whether device code can run the flow: it is constructed without data, and serves one host.
template <class Flow>
inline constexpr bool kOnDevices = std::is_same_v<typename Flow::Data, NoData> && !Flow::kBetweenHosts;

/// Calls f(Collective, Algorithm, flow) for every row of the list.
template <class F>
constexpr void for_each_flow(F&& f, const FlowData& data = {}) {
#define OURO_X(c, a, F_) f(Collective::c, Algorithm::a, made<F_>(data));
  OURO_FLOWS(OURO_X)
#undef OURO_X
}

/// Calls f(flow) for the row of `collective` and `algorithm`; returns false if the list has none.
template <class F>
constexpr bool visit(Collective collective, Algorithm algorithm, F&& f, const FlowData& data = {}) {
#define OURO_X(c, a, F_)                                          \
  if (collective == Collective::c && algorithm == Algorithm::a) { \
    f(made<F_>(data));                                            \
    return true;                                                  \
  }
  OURO_FLOWS(OURO_X)
#undef OURO_X
  return false;
}

/// Whether the flows of this name serve only groups on several hosts.
constexpr bool between_hosts(Algorithm algorithm) {
#define OURO_X(c, a, F_) \
  if (algorithm == Algorithm::a) return F_::kBetweenHosts;
  OURO_FLOWS(OURO_X)
#undef OURO_X
  return false;
}

/// Whether the flows of this name run only through a switch between GPUs.
constexpr bool switched(Algorithm algorithm) {
#define OURO_X(c, a, F_) \
  if (algorithm == Algorithm::a) return F_::kSwitched;
  OURO_FLOWS(OURO_X)
#undef OURO_X
  return false;
}

/// Which buffers must be registered for the zero-copy flow of a collective.
struct Buffers {
  bool inputs = false, root_input_only = false, outputs = false;
};
constexpr Buffers zero_copy_buffers(Collective c) {
  return {
      .inputs = c != Collective::all_gather,
      .root_input_only = c == Collective::broadcast || c == Collective::scatter,
      .outputs = c == Collective::all_reduce || c == Collective::broadcast || c == Collective::all_gather};
}
/// Which buffers the pull flow of a collective reads.
constexpr Buffers pull_buffers(Collective c) {
  return {
      .inputs = true, .root_input_only = c == Collective::broadcast, .outputs = c == Collective::all_reduce};
}

}  // namespace ouro::flow
