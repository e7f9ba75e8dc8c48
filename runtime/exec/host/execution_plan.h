// ExecutionPlan: how an operation runs on the host, computed once from its plan. Made by group, which stores
// it next to the plan; read by the host executors.
#pragma once
#include <memory>

#include "kernels/arith/wire.h"
#include "kernels/host/host_loops.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/plan/in_flight.h"
#include "runtime/plan/partition.h"

namespace ouro::rt {

struct HostResources;

/// Runs the operation in flight to completion on this rank. `invalid` and `unsupported` leave the group
/// usable (every rank returns them); a suspicion (in_flight.h) is left to the group to resolve.
using HostRun = Status (*)(HostResources&, InFlight&);

/// The places where a staged flow stores its posts, and how far ahead of the readers it may run.
struct StagingUse {
  enum class On : std::uint8_t { arrival, eager, slot, ring } on = On::slot;
  bool others = false;                        ///< a rank posts one chunk for each other rank, not one for all
  std::size_t result = 1;                     ///< index of the piece that holds a posted result
  std::size_t stride = 0;                     ///< bytes from one piece of a post to the next
  bool built_in = false;                      ///< posts are copied by the built-in kinds
  std::size_t span = 0;                       ///< bytes that a round takes of the ring; 0: it is not used
  std::uint64_t depth = StagingView::kSlots;  ///< rounds after which a post's memory is reused
  std::uint64_t ahead = 0;                    ///< maximum rounds from posting a round to having released it
  /// The rank requests ownership of the lines that it will write so many rounds ahead of a post; 0: it does
  /// not. Readers share the lines of a post until it is written anew. Stores become visible in order, so each
  /// store that has to wait for another core delays all later ones, in this operation and the next.
  std::uint64_t owns_ahead = 0;
};

/// One flow, with its data cut into chunks for the executor that runs it.
struct FlowPlan {
  HostRun run = nullptr;  ///< null: this flow is not a candidate
  bool stages = false;    ///< uses staging buffers or barriers
  bool streams = false;   ///< outputs are written past the caches
  Partition cut;
  std::size_t accumulators = 0;  ///< bytes
  StagingUse staging;
};

/// The data of a staged flow that has a single round, even blocks and one buffer.
struct SingleRound {
  bool posts = false, copies_own = false;
  int sources = 0;        ///< ranks whose posts this rank reads: all others, the root, or none
  std::size_t bytes = 0;  ///< of a block
  std::size_t in_step = 0, out_step = 0;  ///< bytes from block to block; 0: a single block
};

/// How an operation runs on the host; immutable once made.
struct ExecutionPlan {
  HostRun run = nullptr;  ///< run_by_reference, a single round, or the run of one of the flows below
  kernels::Reduction reduction;
  kernels::Fold fold;    ///< only if the operation reduces
  std::size_t elem = 1;  ///< bytes of an element
  arith::Wire wire;      ///< how its values travel in slots of links
  bool reduces = false;
  FlowPlan flow;             ///< the selected one; not a candidate if the caller requires one of the next two
  FlowPlan zero_copy, pull;  ///< used instead of `flow` if the buffers of all ranks allow
  SingleRound once;
};

/// For the operation and the choice in the plan. `single_rounds`: staged flows of one round may run without
/// the flow's code (single_round.h).
std::shared_ptr<const ExecutionPlan> make_execution_plan(const Plan&, const Members&, const SlotBytes&,
                                                         bool single_rounds);

}  // namespace ouro::rt
