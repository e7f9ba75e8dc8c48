// Decides which parameters of a step on a device share a launch, and with it a step count. Used
// by optimizer.cc.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/train/optim/optimizer_state.h"

namespace ouro::train {

/// One parameter of a step.
struct StepItem {
  Update update;
  std::shared_ptr<OptimizerState> state;  // null: the parameter has had no gradient yet
  bool updates = false;                   // false: the parameter is only mixed
};

/// The arguments of Cohort::enqueue, and the states that they refer to.
struct StepLaunch {
  std::shared_ptr<Cohort> cohort;
  bool counts = false;  // same as StepItem::updates
  std::optional<std::int64_t> begin = {};
  std::optional<TensorList::Staged> staged = {};  // none: `enqueue` stages later, on a host thread
  std::vector<Update> updates;
  std::vector<std::shared_ptr<OptimizerState>> states;
};

/// Belongs to one optimiser: makes its cohorts and keeps those of parameters that are only mixed.
class StepLaunches {
 public:
  /// Makes one launch for all items that have the same type, decay and step count; from here on they are one
  /// cohort. Parameters that a graph has captured together remain together and separate from others, because
  /// the graph counts the steps of all of them; an incomplete set of them is `invalid`, and `name` supplies
  /// the name of one for the error. Unless captured, the steps count as enqueued on the stream. Other errors,
  /// with no step counted: resource, device.
  Result<std::vector<StepLaunch>> of(const std::vector<StepItem>&, const Stream&, bool captured,
                                     const std::function<std::string(const OptimizerState&)>& name);

 private:
  struct Kin {  // what the items of a launch share besides the rule
    bool updates = false, master = false;
    DType dtype = DType::f32;
    double weight_decay = 0;
    Device device;
    friend bool operator==(const Kin&, const Kin&) = default;
  };
  struct Part {
    Kin kin;
    std::shared_ptr<Cohort> cohort;  // null: each item counts alone
    std::int64_t steps = 0;
    std::vector<const StepItem*> items;
  };
  static std::vector<Part> parts_of(const std::vector<StepItem>&);
  static void merge(std::vector<Part>&);
  Result<std::vector<StepLaunch>> launches_of(std::vector<Part>&, const Stream&, bool captured);
  Result<StepLaunch> launch_of(Part&, const Stream&, bool captured);
  /// Returns a cohort without members that no other stream may still use, or a new one. Nothing is freed
  /// while a stream may use it.
  Result<std::shared_ptr<Cohort>> counter(const Part&, Queue, bool captured,
                                          std::optional<std::int64_t>* begin);
  /// One cohort for each queue, whose launches follow each other, and one for each launch in a graph, which
  /// may be replayed anywhere.
  Result<std::shared_ptr<Cohort>> mixer(const Kin&, Queue, bool captured);

  struct Mixer {
    Kin kin;
    std::optional<Queue> queue;  // none: belongs to a graph
    std::shared_ptr<Cohort> cohort;
  };
  std::vector<std::shared_ptr<Cohort>> made_;
  std::vector<Mixer> mixed_;
};

}  // namespace ouro::train
