// The properties that a flow declares at compile time. Base of every algorithm; read by selection, executors
// and the verifier.
#pragma once
#include "kernels/flow/step.h"

namespace ouro::flow {

struct NoData {};

/// A flow is a struct with `chunks(Place)`, the number of chunks of one round, and `operator()(Place,
/// Listener&&)`, which names the steps of one rank in order. It hides those of the constants below whose
/// defaults do not fit it.
///
/// Chunks: in all_reduce, broadcast and reduce, chunks are pieces of the round's region. Otherwise chunk c is
/// block c of n; the one-block side (input of all_gather and gather, output of reduce_scatter and scatter)
/// has chunk `rank` only. Chunk c of an all_to_all's input goes to rank c, chunk c of its output comes
/// from rank c.
struct Traits {
  /// The run-time data that a flow is constructed from; it is the flow's only member. See FlowData (list.h).
  using Data = NoData;
  /// Serves only groups on several hosts: uses links, and treats hops inside a host differently.
  static constexpr bool kBetweenHosts = false;
  /// Called once for all rounds and interleaves them itself: its chunks are those of round 0, then those of
  /// round 1, ... All chunks share one accumulator: a chunk must be done with it before another chunk's
  /// first kKeep.
  static constexpr bool kPipelined = false;
  /// Keeps partial sums between steps.
  static constexpr bool kKeeps = false;
  /// Every reduction is ((x0 + x1) + x2) + ..., in rank order. Also true for flows that reduce nothing.
  static constexpr bool kCanonical = true;
  /// Uses staging buffers or barriers; all other flows use links only.
  static constexpr bool kStaging = false;
  /// How many chunks a rank posts in a round: one, or one for each other rank; and whether it also
  /// posts a result.
  static constexpr bool kPostsOthers = false, kPostsResult = false;
  /// Ranks post without waiting for all others in between, so they may run far ahead of their readers.
  static constexpr bool kRooted = false;
  /// Refers to buffers that need not be registered: ranks copy data out of the other processes.
  static constexpr bool kPulls = false;
  /// Serves only inputs of at most Arrival::kInline bytes.
  static constexpr bool kInline = false;
  /// Writes into the outputs of other ranks: needs registered outputs on all ranks.
  static constexpr bool kMulticast = false;
  /// Staging buffers refer to registered buffers in place of copies; ends with barrier(), after which the
  /// buffers may be reused.
  static constexpr bool kByReference = false;
  /// A switch between GPUs reduces and multicasts: the staging buffers of all ranks are at one address
  /// (multicast objects). No other executor can run it.
  static constexpr bool kSwitched = false;
  /// Correct if the output aliases the input.
  static constexpr bool kInPlace = true;
};

/// How many chunks a rank runs ahead for each hop between it and the turning point: two hop times for the way
/// there and back, and one to hide latency. Four would deadlock with two slots per link.
inline constexpr int kLagPerHop = 3;

/// How many rounds a rank posts ahead of the round that it reads, so that the next data is already in the
/// staging buffer when the last reader of a round reaches it. Must be less than the number of slots of a
/// staging buffer minus the stages of a flow.
inline constexpr int kStagingLag = 1;

/// Calls up(0..rounds-1) and, `lag` chunks behind, down(0..rounds-1), so that both directions are
/// busy at once.
template <class Up, class Down>
OURO_HD void pipeline(int rounds, int lag, Up&& up, Down&& down) {
  OURO_ROLLED
  for (int i = 0; i < rounds + lag; ++i) {
    if (i < rounds) up(i);
    if (i >= lag) down(i - lag);
  }
}

}  // namespace ouro::flow
