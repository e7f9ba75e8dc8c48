// Which parameters of a step on a device share a launch, and with it a count of steps. Used by optimizer.cc.
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
  bool updates = false;                   // else only mixed
};

/// What Cohort::enqueue takes, and the states that it needs.
struct StepLaunch {
  std::shared_ptr<Cohort> cohort;
  bool counts = false;  // as StepItem::updates
  std::optional<std::int64_t> begin = {};
  std::optional<TensorList::Staged> staged = {};  // else `enqueue` runs later, on a thread of the host
  std::vector<Update> updates;
  std::vector<std::shared_ptr<OptimizerState>> states;
};

/// Of one optimiser: makes its cohorts, and knows those of what is only mixed.
class StepLaunches {
 public:
  /// One launch for all items that have the same type, decay and count of steps; they are one cohort from
  /// here on. What a graph has captured together stays together, and by itself: the graph counts for all of
  /// it, so a part of it is `invalid`, told with the name of one. The steps count as enqueued on the stream,
  /// unless they are captured. Errors besides: resource, device; no step has been counted then.
  Result<std::vector<StepLaunch>> of(const std::vector<StepItem>&, const Stream&, bool captured,
                                     const std::function<std::string(const OptimizerState&)>& name);

 private:
  struct Kin {  // what items of a launch have in common beside the rule
    bool updates = false, master = false;
    DType dtype = DType::f32;
    double weight_decay = 0;
    Device device;
    friend bool operator==(const Kin&, const Kin&) = default;
  };
  struct Part {
    Kin kin;
    std::shared_ptr<Cohort> cohort;  // null: each counts alone
    std::int64_t steps = 0;
    std::vector<const StepItem*> items;
  };
  static std::vector<Part> parts_of(const std::vector<StepItem>&);
  static void merge(std::vector<Part>&);
  Result<std::vector<StepLaunch>> launches_of(std::vector<Part>&, const Stream&, bool captured);
  Result<StepLaunch> launch_of(Part&, const Stream&, bool captured);
  /// One that nobody counts by any more and no other stream may still use, or a new one. Nothing is freed
  /// while a stream may use it.
  Result<std::shared_ptr<Cohort>> counter(const Part&, Queue, bool captured,
                                          std::optional<std::int64_t>* begin);
  /// One for each queue, whose launches follow each other, and one for each launch in a graph, which may be
  /// replayed anywhere.
  Result<std::shared_ptr<Cohort>> mixer(const Kin&, Queue, bool captured);

  struct Mixer {
    Kin kin;
    std::optional<Queue> queue;  // none: of a graph
    std::shared_ptr<Cohort> cohort;
  };
  std::vector<std::shared_ptr<Cohort>> made_;
  std::vector<Mixer> mixed_;
};

}  // namespace ouro::train
