// What a sharded trainer consists of: the two sides of its mesh, buckets with their shards, the state of a
// step. Used by the parts of ShardedTrainer: shard.cc, shard_step.cc, shard_save.cc.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "api/train/buckets/trainer_bucket.h"
#include "api/train/buckets/trainer_groups.h"
#include "api/train/common/comparison.h"
#include "api/train/common/step_guard.h"
#include "ouro/train/shard.hpp"

namespace ouro::train {

/// One dimension of the mesh. Where it is one rank wide, there are no groups.
struct ShardSide : TrainerGroups {
  int rank = 0, size = 1;
  bool alone() const { return size == 1; }
};

/// `grad` is for gradients; else, unless the values have a block, for values on their way to all ranks.
struct ShardBucket : TrainerBucket {
  /// The parts of params in this rank's shard; their gradients are means, in this rank's part of `grad`.
  std::vector<Param> mine;

  StepOptions step;       // as the update will take it
  GradientSurvey survey;  // of `mine`, where the step defers
  Work work;              // what its stream does with it
};

struct ShardedTrainer::State : StepGuard {
  State(ShardOptions o, std::vector<Param> p)
      : StepGuard("ShardedTrainer"), options(std::move(o)), params(std::move(p)) {}
  ~State();

  ShardOptions options;
  ShardSide shards, replicas;
  std::vector<Param> params;  // as params() shows them
  std::vector<Param> mine;    // as shard() shows them
  std::vector<BucketLayout> layouts;
  // Of what ranks agreed on, as the saved form has it: on whichever device the parameters are.
  std::uint64_t params_digest = 0, options_digest = 0;
  double norm = std::numeric_limits<double>::quiet_NaN();
  std::size_t launched = 0;  // buckets whose reduction is under way in this step

  std::vector<ShardBucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter; of trainable ones
  std::optional<StreamPool> pool;      // last: its threads end first

  /// `shards` or `replicas` is null: that side is one rank wide.
  static Result<ShardedTrainer> make(Group* shards, Group* replicas, std::vector<Param>, ShardOptions);
  /// Keeps the first error, ends the groups with it, so that no rank waits for this one, and returns when
  /// nothing of the step is in flight any more.
  Status fail(Status);
  void abort(const std::string& why);  // on both sides

  /// Blocks, optimisers and schedules; nothing is communicated.
  Status make_buckets();
  Status fill(ShardBucket&);
  /// Over both sides: ok, or an error on all ranks.
  Status compare_all(std::string_view call, std::span<const Claim>, Status mine);
  /// All ranks take the values of the rank that is 0 on both sides.
  Status take_values_of_0();

  bool defers() const { return options.clip_norm > 0 || options.scaler; }
  void launch(std::size_t bucket);
  /// Whether the step is skipped, and how much it clips: what all gradients say together.
  struct Decision {
    bool skip = false;
    double clip = 1;
  };
  Result<Decision> decide();
  Status wait_for_buckets() const;
  void finish(bool skipped);

  // What happens to a bucket, on its stream.
  View part(const Block&) const;  // this rank's
  Status reduce(std::size_t bucket);
  Status update(std::size_t bucket);
  Status gather(std::size_t bucket);
};

}  // namespace ouro::train
