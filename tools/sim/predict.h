// Predicts the cost of a flow on a described cluster by running its steps against a clock. Used by ouro-sim
// and its tests.
#pragma once

#include "kernels/flow/list.h"
#include "tools/sim/cluster.h"

namespace ouro::sim {

struct Job {
  Collective collective = Collective::all_reduce;
  flow::Algorithm algorithm = flow::Algorithm::ring;
  int ranks = 8;
  int root = 0;
  double bytes = 0;       // of the whole buffer: if one side is a block, of the side with all n blocks
  double wide_ratio = 1;  // size of a wide value divided by that of a narrow one: 2 for sums of 16-bit floats
};

/// full: simulates every rank. representative: simulates one node's worth of ranks; all others move in step
/// with them. automatic: full up to kFullRanks ranks; above that, representative if the flow has the
/// symmetry, else full if it is cheap.
enum class Method { automatic, full, representative };
inline constexpr int kFullRanks = 1024, kMaxRanks = 65536, kRunRounds = 128;

struct Prediction {
  double seconds = 0;           // until the last rank has finished
  double rounds = 0;            // how often the set of chunks recurs
  int simulated_ranks = 0;      // fewer than the job's ranks if representatives were simulated
  bool extrapolated = false;    // many rounds: the steady state of the first ones was extrapolated
  bool by_record = false;       // `seconds` is the library's prediction from the host's record
  double busiest = 0;           // bytes over the directed pair of ranks that carries most
  double busiest_node = 0;      // bytes that the busiest node sends to, or receives from, all others
  double intra = 0, inter = 0;  // total bytes inside nodes and between them
};

/// The model: a message starts when its sender has reached the step, the slot is free and the sender's port
/// is free, and arrives alpha later; it keeps both ports busy for gap + bytes*beta (the receiver's port in
/// the order in which it receives). A receiver waits; a reduction or local copy takes bytes*gamma. Posting
/// copies into the staging buffer (unless by reference); reading a chunk of a staging buffer takes gap +
/// bytes*beta of the reader's time, beginning alpha after it was posted.
///
/// With node_port, messages between nodes occupy the ports of the two nodes instead of those of the ranks, in
/// the order in which they are sent; staging buffers do not reach across nodes (without node_port, the links
/// between nodes stand in for them).
///
/// For a host with a record there is one more model: the library's own (runtime/plan/cost.h), by which it
/// chooses algorithms and which Group::explain shows. Flows that it knows take the time that it predicts;
/// bytes are counted as described here. It does not cover wide values.
///
/// Representatives are exact if the flow is the same after moving all ranks by whole nodes (rings,
/// dissemination, unrooted staging buffers) or after flipping the upper bits of their numbers (halving,
/// powers of two). For the extra ranks of halving the result is an upper bound: every node is assumed to have
/// them. `run_rounds` rounds in steady state are simulated, and the last three quarters of them are
/// extrapolated to all further rounds. Errors: invalid (ranks, bytes, no such flow, too large for this flow
/// and method).
Result<Prediction> predict(const Cluster&, const Job&, Method = Method::automatic,
                           int run_rounds = kRunRounds);

}  // namespace ouro::sim
