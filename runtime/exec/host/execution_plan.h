// ExecutionPlan: how an operation runs on the host, worked out once from its plan. Made by group, which keeps
// it beside the plan; read by the host executors.
#pragma once
#include <memory>

#include "kernels/host/host_loops.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/plan/in_flight.h"
#include "runtime/plan/partition.h"

namespace ouro::rt {

struct HostResources;

/// Runs the operation in flight to its end on this rank. `invalid` and `unsupported` leave the group usable
/// (all ranks return them alike); a suspicion (in_flight.h) is for the group to resolve.
using HostRun = Status (*)(HostResources&, InFlight&);

/// Where the posts of a staged flow lie, and how far they may run ahead.
struct StagingUse {
  enum class On : std::uint8_t { arrival, eager, slot } on = On::slot;
  bool others = false;     ///< a rank posts a chunk for each of the others, not one for all
  std::size_t result = 1;  ///< the piece that a result is
  std::size_t stride = 0;  ///< bytes between the pieces of a post
  std::uint64_t depth = StagingView::kSlots;  ///< rounds until what a post uses is used again
  std::uint64_t ahead = 0;  ///< rounds between posting a round and having released it, at most
};

/// One flow, cut for what carries it.
struct FlowPlan {
  HostRun run = nullptr;  ///< null: not considered
  bool stages = false;    ///< it posts to staging buffers, or meets there
  Partition cut;
  std::size_t accumulators = 0;  ///< bytes
  StagingUse staging;
};

/// What a staged flow comes to in a single round of even blocks in one buffer.
struct SingleRound {
  bool posts = false, copies_own = false;
  int sources = 0;        ///< ranks whose posts this rank reads: all others, the root, or none
  std::size_t bytes = 0;  ///< of a block
  std::size_t in_step = 0, out_step = 0;  ///< bytes from block to block; 0: there is one
};

/// How an operation runs on the host; never changed once it is made.
struct ExecutionPlan {
  HostRun run = nullptr;  ///< of what follows: the single round, the question for references, or the flow
  kernels::Reduction reduction;
  kernels::Fold fold;                   ///< of operations that reduce
  std::size_t elem = 1, acc_bytes = 1;  ///< of an element, of one in the accumulation type
  bool reduces = false;
  bool streams = false;  ///< outputs go past the caches
  FlowPlan flow;  ///< the one that was selected; not considered where the caller wants one of the next two
  FlowPlan zero_copy, pull;  ///< in place of it, where the buffers of all ranks allow
  SingleRound once;
};

/// For the operation and the choice in `plan`. `single_rounds`: staged flows of one round run by hand.
std::shared_ptr<const ExecutionPlan> make_execution_plan(const Plan&, const Members&, const SlotBytes&,
                                                         bool single_rounds);

}  // namespace ouro::rt
