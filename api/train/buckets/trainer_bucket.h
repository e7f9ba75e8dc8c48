// A bucket, as both trainers use it: parameters that travel together, their memory, their optimiser. Used by
// the parts of GossipTrainer and ShardedTrainer.
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
  std::vector<Param> params;  // current views, in the order of the block
  std::unique_ptr<Optimizer> optimizer;
  std::optional<Schedule> schedule;
  Block value;  // with params_in_bucket only
  Block grad;
  std::size_t unready = 0;  // gradients missing in this step

  /// Allocates memory for all of its elements.
  Status make(Block&) const;
  /// Moves parameter i into the bucket's memory.
  Status move_value(std::size_t i) { return move(params[i].value, value, i); }
  Status move_grad(std::size_t i) { return move(params[i].grad, grad, i); }
  /// `updated`: the parameters that the optimiser updates; the schedule covers all parameters.
  Status make_rule(const OptimizerFactory&, std::span<const Param> updated, const ScheduleFactory&);
  /// Adds the optimiser and the schedule to the digest, the latter by those of its rates that may be queried:
  /// ranks that differ in them do not train one model.
  void add_rule(Digest*) const;
  double lr() const { return schedule ? schedule->lr() : optimizer->lr(); }  ///< rate of the next update

 private:
  Status move(View&, const Block& to, std::size_t i) const;
};

/// The optimiser that the factory makes; invalid if it makes none.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerFactory&, std::span<const Param>);

}  // namespace ouro::train
