// From calls to plans. Used by Group and its parts.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/context/context.h"
#include "runtime/exec/host/host_resources.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/select.h"

namespace ouro::rt {

/// Makes the plans of a group: checks a call, selects its algorithm, signs it, and works out how it runs on
/// the host.
class Planner {
  friend struct TestAccess;

 public:
  /// By the rules of the context and by OURO_ALGO. Errors: invalid (OURO_ALGO names no algorithm).
  static Result<std::unique_ptr<Selector>> make_selector(const Context&, const std::vector<int>& world_ranks,
                                                         int hosts);
  /// `numerics`: of calls that choose none; `group`: its name, for messages.
  Planner(std::unique_ptr<Selector>, const Members&, const HostResources&, Numerics numerics,
          std::string group);

  /// The plan that this thread has kept for such a call, or nullptr.
  const Plan* find(const Operation& op) const { return find_plan(serial_, op); }
  /// Errors: those of check() and of the selection, resource. Throws nothing.
  Status make(const Operation&, Plan*) const;
  /// What would be selected, and why if that is asked for.
  Status choose(const Operation&, Choice*, std::string* why = nullptr) const;
  /// What the flows of a choice take by a host's record, in words; "" where the record does not say.
  std::string predicted(const Calibration&, const Operation&, const Choice&) const;
  /// Whether OURO_ALGO names the algorithm of this collective.
  bool forces(Collective c) const { return selector_->forces(c); }
  Numerics numerics_of(const Operation& op) const {
    return op.numerics == Numerics::inherit ? numerics_ : op.numerics;
  }

 private:
  Status work_out(const Operation&, Plan*) const;

  std::unique_ptr<Selector> selector_;
  const Members& members_;
  const HostResources& host_;
  const Numerics numerics_;
  const std::string group_;
  const std::uint64_t serial_;  // of this object among all planners of the process, never 0
};

}  // namespace ouro::rt
