// What a flow says about itself at compile time. Base of every algorithm; read by selection, executors,
// verifier.
#pragma once
#include "kernels/flow/step.h"

namespace ouro::flow {

struct NoData {};

/// A flow is a struct with `chunks(Place)`, the number of chunks of one round, and `operator()(Place,
/// Listener&&)`, which says the steps of one rank in order. It hides those of these constants that do not fit
/// it.
///
/// Chunks: all_reduce, broadcast, reduce: pieces of the round's region. Elsewhere chunk c is block c, n in
/// all; the one-block side (input of all_gather and gather, output of reduce_scatter and scatter) has chunk
/// `rank` only. Chunk c of an all_to_all's input goes to rank c, chunk c of its output comes from rank c.
struct Traits {
  /// What the flow is made of, besides its type. It has this as its only member; see FlowData (list.h).
  using Data = NoData;
  /// Serves groups on several hosts only: over links, with a hop inside a host in mind.
  static constexpr bool kBetweenHosts = false;
  /// Called once for all rounds and interleaves them itself: its chunks are those of round 0, then those of
  /// round 1, ... All chunks share one accumulator: a chunk is done with it before another chunk's first
  /// kKeep.
  static constexpr bool kPipelined = false;
  /// Keeps partial sums between steps.
  static constexpr bool kKeeps = false;
  /// Every reduction is ((x0 + x1) + x2) + ..., in rank order. True as well where nothing is reduced.
  static constexpr bool kCanonical = true;
  /// Posts in staging buffers or barriers; all others use links only.
  static constexpr bool kStaging = false;
  /// How many chunks a rank posts in a round: one, or those of all others; and whether it posts a result too.
  static constexpr bool kPostsOthers = false, kPostsResult = false;
  /// Ranks post without waiting for all others in between: they may run far ahead of who reads.
  static constexpr bool kRooted = false;
  /// By reference to buffers that need not be registered: what others have is copied out of their processes.
  static constexpr bool kPulls = false;
  /// Serves inputs of at most Arrival::kInline bytes only.
  static constexpr bool kInline = false;
  /// Writes into the outputs of others: needs registered outputs on all ranks.
  static constexpr bool kMulticast = false;
  /// Staging buffers refer to registered buffers in place of copies; closes with barrier(), after which they
  /// are free.
  static constexpr bool kByReference = false;
  /// A switch between GPUs reduces and spreads: staging buffers of all ranks at one address (multicast
  /// objects). Nothing else carries it out.
  static constexpr bool kSwitched = false;
  /// Right where the output aliases the input.
  static constexpr bool kInPlace = true;
};

/// How many chunks a rank runs ahead, for each hop to the turning point: two hop times there and back, and
/// one to hide latency. With two slots a link, four would deadlock.
inline constexpr int kLagPerHop = 3;

/// How many rounds a rank posts ahead of those that it reads: what comes next is in the staging buffer
/// already when the last reader of a round turns to it. Below the number of slots of a staging buffer less
/// the stages of a flow.
inline constexpr int kStagingLag = 1;

/// Says up(0..rounds-1) and, `lag` chunks behind, down(0..rounds-1), so that both directions are busy at
/// once.
template <class Up, class Down>
OURO_HD void pipeline(int rounds, int lag, Up&& up, Down&& down) {
  for (int i = 0; i < rounds + lag; ++i) {
    if (i < rounds) up(i);
    if (i >= lag) down(i - lag);
  }
}

}  // namespace ouro::flow
