// Planner: turns calls into plans. Used by Group and its parts.
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

/// Makes the plans of a group: checks a call, selects its algorithm, signs it, and works out how it runs
/// on the host.
class Planner {
  friend struct TestAccess;

 public:
  /// OURO_ALGO, or "". Read when a group is made and not later: ranks compare it when they join, and a
  /// program may change it afterwards. Errors: invalid (it names no algorithm).
  static Result<std::string> job_algorithm();
  /// Makes a selector by the rules of the context. Throws if there is no memory.
  static std::unique_ptr<Selector> make_selector(const Context&, const Calibration&,
                                                 const std::vector<int>& world_ranks, int hosts,
                                                 std::string job_algorithm);
  /// `numerics`: for calls that choose none; `group`: its name, for messages.
  Planner(std::unique_ptr<Selector>, const Members&, const HostResources&, Numerics numerics,
          std::string group);

  /// The plan that this thread has kept for such a call, or nullptr.
  const Plan* kept_plan(const Operation& op) const { return find_plan(serial(), op); }
  /// Whether the group has changed its selection table since the plan was made. Exact for the thread whose
  /// turn it is.
  bool outdated(const Plan& plan) const { return plan.table != table(); }
  std::uint32_t table() const { return static_cast<std::uint32_t>(serial()); }
  /// Selects by the rows of another record from now on. Other threads may plan meanwhile: plans whose turn
  /// has not been reached yet are made again. Called by the thread whose turn it is. Throws if there
  /// is no memory.
  void reckon_with(const Context&, const Calibration&);
  /// Errors: those of check() and of the selection, resource. Throws nothing.
  Status make(const Operation&, Plan*) const;
  /// What would be selected, and, unless `why` is null, why.
  Status choose(const Operation&, Choice*, std::string* why = nullptr) const;
  /// The times that the flows of a choice take according to a host's record, as text; "" if the record
  /// does not say.
  std::string predicted(const Calibration&, const Operation&, const Choice&) const;
  /// The predicted time in nanoseconds of the flow that is likely to run, the fastest that the choice allows.
  /// 0: not known.
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

  std::vector<std::unique_ptr<const Selector>> selectors_;  // all so far: a thread may plan by an older one
  std::atomic<const Selector*> selector_{nullptr};          // the newest
  std::atomic<std::uint64_t> serial_{0};                    // of its table in this process, never 0
  const Members& members_;
  const HostResources& host_;
  const Numerics numerics_;
  const std::string group_;
};

}  // namespace ouro::rt
