// What a sharded trainer consists of: the two sides of its mesh, buckets with their shards, the state of a
// step. Used by the parts of ShardedTrainer: shard.cc, shard_step.cc, shard_save.cc.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "api/src/train/block.h"
#include "api/src/train/comparison.h"
#include "api/src/train/param_checks.h"
#include "ouro/train/shard.hpp"

namespace ouro::train {

/// One dimension of the mesh. Where it is one rank wide, there are no groups.
struct ShardSide {
  int rank = 0, size = 1;
  Group control;             // for what all ranks decide, in the thread that trains
  std::vector<Group> lanes;  // bucket b communicates in lane b mod their number, on the stream of that number

  /// Collective: makes the groups of a side whose rank and size are known.
  Status connect(Group&);
  bool alone() const { return size == 1; }
};

struct ShardBucket {
  BucketLayout layout;
  std::vector<Param> params;  // views as they are now, in the order of the block
  /// The parts of params in this rank's shard; their gradients are means, in this rank's part of `grad`.
  std::vector<Param> mine;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<Schedule> schedule;
  Block value;  // params_in_bucket only
  Block grad;   // gradients; else, unless the values have a block, on their way to all ranks, values

  std::size_t unready = 0;  // gradients missing in this step
  StepOptions step;         // as the update will take it
  GradientSurvey survey;    // of `mine`, where the step defers
  Work work;                // what its stream does with it
};

struct ShardedTrainer::State {
  State(ShardOptions o, std::vector<Param> p) : options(std::move(o)), params(std::move(p)) {}
  ~State();

  ShardOptions options;
  ShardSide shards, replicas;
  int world_rank = 0;
  std::vector<Param> params;  // as params() shows them
  std::vector<Param> mine;    // as shard() shows them
  std::vector<BucketLayout> layouts;
  std::uint64_t digest = 0;  // of what ranks agreed on
  std::int64_t steps = 0;
  double lr = 0, norm = std::numeric_limits<double>::quiet_NaN();
  bool accumulating = false, open = false, closed = false;
  Status failure;

  // Of the step under way.
  std::vector<bool> ready;    // by parameter
  std::vector<Event> events;  // by parameter: when its gradient is there
  std::size_t gradients = 0;  // that are ready
  std::size_t launched = 0;   // buckets whose reduction is under way

  std::vector<ShardBucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter; of trainable ones
  std::optional<StreamPool> pool;      // last: its threads end first

  /// `shards` or `replicas` is null: that side is one rank wide.
  static Result<ShardedTrainer> make(Group* shards, Group* replicas, std::vector<Param>, ShardOptions);
  Status usable() const;
  /// Keeps the first error, ends the groups with it, so that no rank waits for this one, and returns when
  /// nothing of the step is in flight any more.
  Status fail(Status);
  void abort(const std::string& why);  // on both sides

  /// Blocks, optimisers and schedules; nothing is communicated.
  Status make_buckets();
  Status fill(ShardBucket&);
  double rate() const;  // of the next update, as the first bucket has it
  Result<std::unique_ptr<Optimizer>> make_optimizer(const ShardBucket&) const;
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
  void end_step(bool skipped);

  // What happens to a bucket, on its stream.
  View part(const Block&) const;  // this rank's
  Status reduce(std::size_t bucket);
  Status update(std::size_t bucket);
  Status gather(std::size_t bucket);
};

}  // namespace ouro::train
