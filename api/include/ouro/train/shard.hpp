/// Sharded and plain data parallel: gradients are averaged bucket by bucket beside the backward pass, each
/// rank updates its shard of the parameters, and all ranks gather the result. For users.
/// @file
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ouro/train/bucket.hpp"
#include "ouro/train/optim.hpp"
#include "ouro/train/param.hpp"
#include "ouro/train/scaler.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::train {

/// Options of a ShardedTrainer; all ranks have the same.
struct ShardOptions {
  /// Called once a bucket, with the parts of its parameters that this rank updates (their names and elements
  /// in one dimension; perhaps none), so that rules that go by name hold within a shard. Ranks compare the
  /// digest of the first bucket's.
  OptimizerFactory optimizer;
  ScheduleFactory schedule{};  ///< called once a bucket, with its parameters; none: the optimiser's own rate
  double bucket_mb = 25;       ///< 0: one bucket a parameter
  /// Of buckets: places in the list, each trainable parameter once, as gradients usually become ready.
  /// Empty: from the end of the list. A bucket is reduced once those before it have begun.
  std::vector<int> order = {};
  /// g *= min(1, clip_norm / (||g|| + 1e-6)) with the norm of the mean gradient over all parameters, summed
  /// up over shards; updates wait for the end of the backward pass. 0: not.
  double clip_norm = 0;
  /// From the start values are views of their bucket's block: read and write them through params(), the
  /// caller's memory is not touched any more. Without it values stay where they are, with the same results,
  /// and are copied once more.
  bool params_in_bucket = true;
  /// The same for gradients, which are then reduced in place: what they hold after a step is undefined.
  bool grads_in_bucket = false;
  bool sync_all = true;  ///< at the start rank 0 gives its frozen parameters, too
  /// A gradient that is missing at the end of a backward pass is zero, and zeros are written there; else it
  /// is an error on all ranks.
  bool find_unused = false;
  /// GradScaler::scale is that of the first step. ScalerScope::local is `invalid`: shards belong to one
  /// model.
  std::optional<GradScaler> scaler{};
  Numerics numerics = Numerics::inherit;  ///< of the reductions; inherit: the groups'
};

/// With g_r the gradient of rank r, at the same parameters x on all ranks, and U the optimiser's increment:
///
///     g = mean over ranks of g_r ;   x <- x + U(g; x)
///
/// For each bucket: reduce-scatter of the gradients over the shard group, all-reduce of the own shard over
/// the replica group, update of the own shard, all-gather over the shard group. All of that runs on a stream
/// of a pool, beside the backward pass and beside other buckets. What clipping or a scaler must know of all
/// gradients first holds back updates, not reductions.
///
/// Memory of a rank beyond the caller's values and gradients, P being their elements, padded (each tensor to
/// a multiple of 32, each bucket to one of 32 * size of the shard group): P gradients, unless
/// grads_in_bucket moves the caller's; P values if params_in_bucket, which stand for the caller's; and 1/size
/// of the optimiser's state (master copies included). Values and gradients are whole on each rank, as the
/// first two stages of ZeRO have them (Rajbhandari et al., SC 2020).
///
/// Numerics. One group, sharded or not: under the canonical contract x has the same bits as after
/// average_gradients and a step of the same optimiser, whatever the number of shards and the buckets;
/// clipping adds the squares of gradients bucket by bucket and shard by shard, so the last bits of the norm
/// depend on both. Shards and replicas: the mean of the means of the shard groups, rounded to the gradient's
/// type in between. In every case all ranks hold the same bits.
///
/// A training step is: begin_step; forward and backward pass, with grad_ready for each gradient;
/// end_backward. One thread drives a trainer.
///
/// Errors: invalid (arguments, or calls out of turn; nothing changes). Any other failure, and what ranks
/// disagree about, ends the trainer on all ranks: every later call returns the first error. `invalid` it is
/// for disagreement and for missing gradients, whichever rank misses them. After a failure values may be
/// those of either step, bucket by bucket.
class OURO_API ShardedTrainer {
 public:
  /// Fully sharded (FSDP): each rank of the group updates one shard of each bucket.
  /// Collective. All ranks agree on names, shapes, types, order and options; then all take rank 0's values.
  /// The groups are used here alone. Trainable parameters are f64, f32, bf16 or f16, on the host or on this
  /// rank's GPU (where a step waits for its gradients and cannot be captured into a graph). Errors: invalid
  /// (on all ranks: no parameter, a name or memory twice, a shape that does not fit, options).
  static Result<ShardedTrainer> create(Group& shards, std::vector<Param>, ShardOptions);
  /// Hybrid (HSDP): the two sub-groups of this rank in a 2-D mesh, as create_groups gives them. All members
  /// of `replicas` have the same rank in their `shards`, and the other way round; else `invalid` on all
  /// ranks.
  static Result<ShardedTrainer> create(Group& shards, Group& replicas, std::vector<Param>, ShardOptions);
  /// Plain data parallel (DDP): no shards, all-reduce of each bucket; each rank updates all parameters.
  static Result<ShardedTrainer> data_parallel(Group& replicas, std::vector<Param>, ShardOptions);

  /// Before the forward pass. `training` false: a pass that is not trained on, and is not a step.
  Status begin_step(bool training = true);
  /// The gradient of parameter `param` (its place in the list) is complete, or will be once what is enqueued
  /// on `stream` now has run; and this backward pass needs its value no more. When all of a bucket are ready
  /// it is on its way.
  Status grad_ready(int param, const Stream& stream = {});
  /// Collective. Reduces and updates what is left; values are final on return, and gradients may be written
  /// to. What is enqueued on `stream` is waited for.
  Status end_backward(const Stream& stream = {});
  /// While on, grad_ready and end_backward do nothing and steps are not counted: the caller sums up
  /// gradients. Turn it off before the last micro-batch.
  void set_accumulate(bool on);

  /// Where values and gradients are, whole.
  std::span<const Param> params() const;
  /// Blocks of equal parts for all shards: rank r of the shard group has part r. Some may be equally long.
  std::span<const BucketLayout> buckets() const;
  /// The parts that this rank updates, bucket by bucket: views of the values in params(), without gradients.
  std::span<const Param> shard() const;
  double lr() const;     ///< of the next update
  double scale() const;  ///< what to multiply the loss with; 1 without a scaler
  double grad_norm()
      const;  ///< of the last step, before it was clipped; not a number unless clip_norm is set
  std::int64_t steps() const;  ///< training steps that were completed, skipped ones included

  /// All that the next steps depend on and this rank owns: the values of its shard, its optimisers'
  /// states, schedules, scaler. Between steps, on each rank for itself.
  Result<Bytes> save();
  /// Collective, into a trainer that was made alike and has taken no step: what each rank saved. Values are
  /// gathered, and the next steps have the same bits. Errors: invalid, on all ranks (damaged, of another
  /// rank, of another model or options, of different steps), and nothing is changed.
  Status load(CBytes);

  /// Collective: waits until no rank needs this one any more, and ends. Idempotent. The destructor does not
  /// wait: what is in flight ends as `revoked` on the other ranks.
  Status close();
  Status status() const;  ///< the error that ended the trainer, or ok

  ShardedTrainer(ShardedTrainer&&) noexcept;             ///< leaves an empty handle behind
  ShardedTrainer& operator=(ShardedTrainer&&) noexcept;  ///< as if the old one were destroyed
  ~ShardedTrainer();

  struct OURO_HIDDEN State;
  OURO_HIDDEN explicit ShardedTrainer(std::shared_ptr<State>);  ///< for the library

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ouro::train
