// Predicts what a flow of the list costs on a described cluster, by running its steps against a clock.
// Used by ouro-sim and its tests.
#pragma once

#include "kernels/flow/list.h"
#include "tools/sim/cluster.h"

namespace ouro::sim {

struct Job {
  Collective collective = Collective::all_reduce;
  flow::Algorithm algorithm = flow::Algorithm::ring;
  int ranks = 8;
  int root = 0;
  double bytes = 0;       // of the whole buffer: where one side is a block, of the side with all n blocks
  double wide_ratio = 1;  // size of a wide value over a narrow one: 2 for sums of 16-bit floats
};

/// full: every rank. representative: one node's worth of ranks; all others move in step with them. automatic:
/// full up to kFullRanks ranks, above that representative where a flow has the symmetry, else full if it is
/// cheap.
enum class Method { automatic, full, representative };
inline constexpr int kFullRanks = 1024, kMaxRanks = 65536, kRunRounds = 128;

struct Prediction {
  double seconds = 0;           // until the last rank is done
  double rounds = 0;            // how often the chunk set recurs
  int simulated_ranks = 0;      // fewer than the job's: representatives
  bool extrapolated = false;    // many rounds: the steady state of the first ones is continued
  bool by_record = false;       // `seconds` is what the library predicts by the host's record
  double busiest = 0;           // bytes over the directed pair of ranks that carries most
  double busiest_node = 0;      // bytes that the busiest node sends to, or receives from, all others
  double intra = 0, inter = 0;  // bytes in all, inside nodes and between them
};

/// The model: a message starts when its sender is there, the slot is free and the sender's port is free, and
/// arrives alpha later; it keeps both ports busy for gap + bytes*beta (the receiver's in the order in which
/// it receives). A receiver waits; a reduction or local copy takes bytes*gamma. Posting copies to the staging
/// buffer (not by reference); reading a chunk of a staging buffer takes gap + bytes*beta of the reader's
/// time, and alpha once it is there.
///
/// With node_port, messages between nodes keep the ports of the two nodes busy in place of those of the
/// ranks, in the order in which they are sent; staging buffers do not reach there (elsewhere the links
/// between nodes stand in for them).
///
/// A host with a record has one more model, the library's (runtime/plan/cost.h), which chooses algorithms and
/// stands in Group::explain: flows that it knows take the time that it says, and bytes are as here. Wide
/// values are not in it.
///
/// Representatives are exact where the flow looks the same after moving all ranks by whole nodes (rings,
/// dissemination, unrooted staging buffers) or flipping the upper bits of their numbers (halving, powers of
/// two). Extra ranks of halving are an upper bound: every node is then taken to have them. Errors: invalid
/// (ranks, bytes, no such flow, too large for this flow and method). `run_rounds` rounds in steady state are
/// run, the last three quarters of them stand for all further ones.
Result<Prediction> predict(const Cluster&, const Job&, Method = Method::automatic,
                           int run_rounds = kRunRounds);

}  // namespace ouro::sim
