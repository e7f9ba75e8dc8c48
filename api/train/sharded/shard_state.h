// The parts of a sharded trainer: the two sides of its mesh, buckets with their shards, the state of a step.
// Used by the parts of ShardedTrainer: shard.cc, shard_step.cc, shard_save.cc.
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

/// One dimension of the mesh. A side that is one rank wide has no groups.
struct ShardSide : TrainerGroups {
  int rank = 0, size = 1;
  bool alone() const { return size == 1; }
};

/// `grad` holds gradients and, unless the values have a block, also values that are being gathered.
struct ShardBucket : TrainerBucket {
  /// The parts of params in this rank's shard; their gradients are means, in this rank's part of `grad`.
  std::vector<Param> mine;

  StepOptions step;       // options of the coming update
  GradientSurvey survey;  // of `mine`, if the step defers
  Work work;              // the bucket's work on its stream
};

struct ShardedTrainer::State : StepGuard {
  State(ShardOptions o, std::vector<Param> p)
      : StepGuard("ShardedTrainer"), options(std::move(o)), params(std::move(p)) {}
  ~State();

  ShardOptions options;
  ShardSide shards, replicas;
  std::vector<Param> params;  // as params() returns them
  std::vector<Param> mine;    // as shard() returns them
  std::vector<BucketLayout> layouts;
  // Digests of what ranks agreed on, as in the saved form: independent of the parameters' device.
  std::uint64_t params_digest = 0, options_digest = 0;
  double norm = std::numeric_limits<double>::quiet_NaN();
  std::size_t launched = 0;  // number of buckets whose reduction has been launched in this step

  std::vector<ShardBucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter; valid for trainable ones
  std::optional<StreamPool> pool;      // last member: its threads must end first

  /// A null `shards` or `replicas` means that this side is one rank wide.
  static Result<ShardedTrainer> make(Group* shards, Group* replicas, std::vector<Param>, ShardOptions);
  /// Stores the first error, aborts the groups with it, so that no rank waits for this one, and returns when
  /// nothing of the step is in flight any more.
  Status fail(Status);
  void abort(const std::string& why);  // on both sides

  /// Makes blocks, optimisers and schedules, without communication.
  Status make_buckets();
  Status fill(ShardBucket&);
  /// Compares over both sides: ok, or an error on all ranks.
  Status compare_all(std::string_view call, std::span<const Claim>, Status mine);
  /// Sends the values of the rank that is 0 on both sides to all ranks.
  Status take_values_of_0();

  bool defers() const { return options.clip_norm > 0 || options.scaler; }
  void launch(std::size_t bucket);
  /// Whether the step is skipped, and its clip factor, decided from all gradients.
  struct Decision {
    bool skip = false;
    double clip = 1;
  };
  Result<Decision> decide();
  Status wait_for_buckets() const;
  void finish(bool skipped);

  // Work on a bucket, on its stream.
  View part(const Block&) const;  // this rank's part
  Status reduce(std::size_t bucket);
  Status update(std::size_t bucket);
  Status gather(std::size_t bucket);
};

}  // namespace ouro::train
