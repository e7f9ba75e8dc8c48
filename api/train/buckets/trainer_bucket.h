// A bucket as both trainers have it: parameters that travel together, their memory, their optimiser.
// Used by the parts of GossipTrainer and ShardedTrainer.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "api/train/buckets/block.h"
#include "api/train/common/comparison.h"
#include "ouro/train/bucket.hpp"
#include "ouro/train/optim.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::train {

struct TrainerBucket {
  BucketLayout layout;
  std::vector<Param> params;  // views as they are now, in the order of the block
  std::unique_ptr<Optimizer> optimizer;
  std::optional<Schedule> schedule;
  Block value;  // params_in_bucket only
  Block grad;
  std::size_t unready = 0;  // gradients missing in this step

  /// Memory for all of its elements.
  Status make(Block&) const;
  /// Parameter i lives in the bucket's memory from now on.
  Status move_value(std::size_t i) { return move(params[i].value, value, i); }
  Status move_grad(std::size_t i) { return move(params[i].grad, grad, i); }
  /// `updated`: what the optimiser is for; the schedule is for all parameters.
  Status make_rule(const OptimizerFactory&, std::span<const Param> updated, const ScheduleFactory&);
  /// What the optimiser and the schedule are, the latter by those of its rates that may be asked for: ranks
  /// that differ in them do not train one model.
  void add_rule(Digest*) const;
  double lr() const { return schedule ? schedule->lr() : optimizer->lr(); }  ///< of the next update

 private:
  Status move(View&, const Block& to, std::size_t i) const;
};

/// What the factory makes; invalid if that is nothing.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerFactory&, std::span<const Param>);

}  // namespace ouro::train
