// InnerGroup: the group of some members of another group that carries a share of its operations. Made by
// Group, used by GpuOperations.
#pragma once
#include <functional>
#include <memory>

#include "runtime/core/status.h"
#include "runtime/plan/parts.h"
#include "runtime/plan/plan.h"

namespace ouro::rt {

/// What the outer group uses of an inner one. The members of an inner group are ranks of equal index on all
/// hosts of the outer group, which carry the part of the path `hierarchy` between hosts.
class InnerGroup {
 public:
  virtual ~InnerGroup() = default;
  /// Carries out `op`, in parts, for operation `whole` of the outer group. A mismatch is reported as one of
  /// `whole`. Blocks until all parts have ended.
  virtual Status run_parts(const Operation& op, const Plan& whole, const NextPart& next) = 0;
  /// Fails this group because the outer one has failed, which has notified its members. Thread-safe.
  virtual void give_up(const Status& why) = 0;
  virtual bool failed() const = 0;
  /// Waits until what is in flight has ended, and leaves the group. Idempotent. Errors: those
  /// of Group::close().
  virtual Status close() = 0;
  /// The rank in the job of a rank of this group; -1: there is no such rank.
  virtual int world_rank(int rank) const = 0;
};

/// Makes the inner group, without communication; all members of the outer group do so on its first use.
using MakeInnerGroup = std::function<Result<std::shared_ptr<InnerGroup>>()>;

}  // namespace ouro::rt
