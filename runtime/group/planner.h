// From calls to plans. Used by Group and its parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  /// OURO_ALGO, or "". It is read when a group is made, and then never: ranks compare it as they join, and a
  /// program may change it afterwards. Errors: invalid (it names no algorithm).
  static Result<std::string> job_algorithm();
  /// By the rules of the context. Throws where there is no memory.
  static std::unique_ptr<Selector> make_selector(const Context&, const Calibration&,
                                                 const std::vector<int>& world_ranks, int hosts,
                                                 std::string job_algorithm);
  /// `numerics`: of calls that choose none; `group`: its name, for messages.
  Planner(std::unique_ptr<Selector>, const Members&, const HostResources&, Numerics numerics,
          std::string group);

  /// The plan that this thread has kept for such a call, or nullptr.
  const Plan* find(const Operation& op) const { return find_plan(serial(), op); }
  /// Whether the group selects by another table since the plan was made. Exact for whose turn it is.
  bool outdated(const Plan& plan) const { return plan.table != table(); }
  std::uint32_t table() const { return static_cast<std::uint32_t>(serial()); }
  /// Selects by the rows of another record from now on, while other threads plan: those of whose plans the
  /// turn has not come plan again. By whose turn it is. Throws where there is no memory.
  void reckon_with(const Context&, const Calibration&);
  /// Errors: those of check() and of the selection, resource. Throws nothing.
  Status make(const Operation&, Plan*) const;
  /// What would be selected, and why if that is asked for.
  Status choose(const Operation&, Choice*, std::string* why = nullptr) const;
  /// What the flows of a choice take by a host's record, in words; "" where the record does not say.
  std::string predicted(const Calibration&, const Operation&, const Choice&) const;
  /// Nanoseconds, of the flow that is likely to run: the fastest that the choice allows. 0: not known.
  double predicted_ns(const Calibration&, const Operation&, const Choice&) const;
  /// Whether OURO_ALGO names the algorithm of this collective.
  bool forces(const Operation& o) const { return selector().forces(o); }
  const std::string& group() const { return group_; }
  Numerics numerics_of(const Operation& op) const {
    return op.numerics == Numerics::inherit ? numerics_ : op.numerics;
  }

 private:
  Status work_out(const Operation&, Plan*) const;
  std::uint64_t serial() const { return serial_.load(std::memory_order_relaxed); }
  const Selector& selector() const { return *selector_.load(std::memory_order_acquire); }
  template <class F>
  void each_prediction(const Calibration&, const Operation&, const Choice&, F&&) const;
  void select_by(std::unique_ptr<const Selector>);

  std::vector<std::unique_ptr<const Selector>> selectors_;  // all so far: somebody may plan by one of them
  std::atomic<const Selector*> selector_{nullptr};          // the newest
  std::atomic<std::uint64_t> serial_{0};                    // of its table among all of the process, never 0
  const Members& members_;
  const HostResources& host_;
  const Numerics numerics_;
  const std::string group_;
};

}  // namespace ouro::rt
