// Plan: what a call amounts to on this rank: checked, selected, signed. Worked out once for calls that are
// alike, as the loops of a trainer make them. Used by group and the executor.
#pragma once
#include <cstdint>
#include <memory>

#include "runtime/plan/operation.h"
#include "runtime/plan/select.h"

namespace ouro::rt {

struct ExecutionPlan;  // runtime/exec/host/execution_plan.h

struct Plan {
  std::uint64_t id = 0;  ///< never used twice; 0: of one call only
  Operation op;          ///< its numerics are the ones in force
  Choice choice;
  Signature signature;
  std::uint64_t folded = 0;  ///< the signature, folded
  bool idle = false;         ///< nothing moves
  std::uint32_t table = 0;   ///< by which it was selected, of all in this process, modulo 2^32
  std::shared_ptr<const ExecutionPlan> host;  ///< how it runs on the host, unless it is idle or on a device
};

/// The plan that this thread has kept for such a call of group `group`, or nullptr. Buffers, counts and all
/// options are the same; what they hold is not looked at.
const Plan* find_plan(std::uint64_t group, const Operation&);
/// Keeps `plan`, made for the call `op`, in place of another, unless such calls are not kept (uneven ones and
/// those that name an algorithm lend memory to their plan; premulsum has a factor), or an operation of this
/// thread waits meanwhile; gives it its id.
void keep_plan(std::uint64_t group, const Operation& op, Plan* plan);

}  // namespace ouro::rt
