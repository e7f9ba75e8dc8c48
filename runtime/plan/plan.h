// Plan: a call on this rank after its checks, with the selected algorithm and its signature. Computed once
// for calls that are alike, as in the loops of a trainer. Used by group and the executor.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/plan/operation.h"
#include "runtime/plan/select.h"

namespace ouro::rt {

struct ExecutionPlan;  // runtime/exec/host/execution_plan.h

struct Plan {
  std::uint64_t id = 0;  ///< never reused; 0: valid for one call only
  Operation op;          ///< its numerics are resolved to those in force
  Choice choice;
  Signature signature;
  std::uint64_t folded = 0;  ///< the signature, folded
  bool idle = false;         ///< no data moves
  std::uint32_t table =
      0;  ///< number of the selection table that it was selected by, unique in this process modulo 2^32
  std::shared_ptr<const ExecutionPlan> host;  ///< how it runs on the host; null if it is idle or on a device
};

/// The plan that this thread has kept for the same call in group `group`, or nullptr. Buffers, counts and all
/// options must be equal; the contents of buffers do not matter.
const Plan* find_plan(std::uint64_t group, const Operation&);
/// Keeps `plan`, made for the call `op`, replacing another, and gives it its id. Does nothing if plans of
/// such calls are not kept (plans of uneven calls, and of calls that name an algorithm, point to memory of
/// the caller; premulsum has a factor), or while an operation of this thread waits.
void keep_plan(std::uint64_t group, const Operation& op, Plan* plan);

}  // namespace ouro::rt
