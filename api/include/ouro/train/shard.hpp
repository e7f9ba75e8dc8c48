/// Sharded and plain data parallelism: gradients are averaged bucket by bucket, overlapped with the backward
/// pass; each rank updates its shard of the parameters, and all ranks gather the result. For users.
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

/// Options of a ShardedTrainer; must be equal on all ranks.
struct ShardOptions {
  /// Called once per bucket, with the parts of its parameters that this rank updates (their names, and
  /// elements in one dimension; perhaps none), so that rules that select by name hold within a shard. Ranks
  /// compare the digest of the first bucket's optimiser.
  OptimizerFactory optimizer;
  /// Called once per bucket, with its parameters; none: the optimiser's own rate.
  ScheduleFactory schedule{};
  double bucket_mb = 25;  ///< bucket size in MiB; 0: one bucket per parameter
  /// Order of parameters in buckets: indices into the list, each trainable parameter once, in the order in
  /// which gradients usually become ready. Empty: from the end of the list. A bucket's reduction starts only
  /// after those before it have started.
  std::vector<int> order = {};
  /// g *= min(1, clip_norm / (||g|| + 1e-6)) with the norm of the mean gradient over all parameters, summed
  /// over shards; updates wait for the end of the backward pass. 0: no clipping.
  double clip_norm = 0;
  /// From the start, values are views of their bucket's block: access them through params(); the caller's
  /// memory is not touched any more. If false, values are not moved, with the same results, at the cost of
  /// one more copy.
  bool params_in_bucket = true;
  /// The same for gradients, which are then reduced in place: their contents after a step are undefined.
  bool grads_in_bucket = false;
  bool sync_all = true;  ///< at the start, rank 0 also sends its frozen parameters
  /// A gradient that is missing at the end of a backward pass counts as zero, and zeros are written to it; if
  /// false, it is an error on all ranks.
  bool find_unused = false;
  /// GradScaler::scale is the scale of the first step. ScalerScope::local is `invalid`: shards belong
  /// to one model.
  std::optional<GradScaler> scaler{};
  Numerics numerics = Numerics::inherit;  ///< numerics of the reductions; inherit: the groups'
};

/// With g_r the gradient of rank r, at the same parameters x on all ranks, and U the optimiser's increment:
///
///     g = mean over ranks of g_r ;   x <- x + U(g; x)
///
/// For each bucket: reduce-scatter of the gradients over the shard group, all-reduce of the own shard over
/// the replica group, update of the own shard, all-gather over the shard group. All of this runs on a stream
/// of a pool, overlapped with the backward pass and with other buckets. If clipping or a scaler needs
/// information about all gradients first, updates wait for it, but reductions do not.
///
/// Memory of a rank beyond the caller's values and gradients, where P is the number of their elements, padded
/// (each tensor to a multiple of 32, each bucket to a multiple of 32 * size of the shard group): P gradients,
/// unless grads_in_bucket moves the caller's; P values if params_in_bucket, which replace the caller's; and
/// 1/size of the optimiser's state (including master copies). Values and gradients are whole on each rank, as
/// in the first two stages of ZeRO (Rajbhandari et al., SC 2020).
///
/// Numerics. One group, sharded or not: under the canonical contract x has the same bits as after
/// average_gradients and a step of the same optimiser, whatever the number of shards and the buckets;
/// clipping adds the squares of gradients bucket by bucket and shard by shard, so the last bits of the norm
/// depend on both. Shards and replicas: the mean of the means of the shard groups, rounded to the gradient's
/// type in between. All ranks hold the same bits in every case.
///
/// A training step is: begin_step; forward and backward pass, with grad_ready for each gradient;
/// end_backward. One thread drives a trainer.
///
/// Errors: invalid (arguments, or calls out of turn; nothing changes). Any other failure, and any
/// disagreement between ranks, ends the trainer on all ranks: every later call returns the first error.
/// Disagreement and missing gradients are `invalid` on all ranks, whichever rank misses them. After a
/// failure, values may be those before or after the step, bucket by bucket.
class OURO_API ShardedTrainer {
 public:
  /// Fully sharded (FSDP): each rank of the group updates one shard of each bucket. Collective. All ranks
  /// must agree on names, shapes, types, order and options; then all take rank 0's values. Only the trainer
  /// may use the groups. Trainable parameters are f64, f32, bf16 or f16, on the host or on this rank's GPU
  /// (where a step waits for its gradients and cannot be captured into a graph). Errors: invalid (on all
  /// ranks: no parameter, a name or memory twice, a shape that does not fit, options).
  static Result<ShardedTrainer> create(Group& shards, std::vector<Param>, ShardOptions);
  /// Hybrid (HSDP): the two sub-groups of this rank in a 2-D mesh, as create_groups returns them. All members
  /// of `replicas` must have the same rank in their `shards`, and vice versa; otherwise `invalid`
  /// on all ranks.
  static Result<ShardedTrainer> create(Group& shards, Group& replicas, std::vector<Param>, ShardOptions);
  /// Plain data parallelism (DDP): no shards, all-reduce of each bucket; each rank updates all parameters.
  static Result<ShardedTrainer> data_parallel(Group& replicas, std::vector<Param>, ShardOptions);

  /// Call before the forward pass. `training` false: a pass without training, which does not count as a step.
  Status begin_step(bool training = true);
  /// The gradient of parameter `param` (its index in the list) is complete, or will be once the work now
  /// enqueued on `stream` has run; and this backward pass no longer needs its value. Once all gradients of a
  /// bucket are ready, its reduction starts.
  Status grad_ready(int param, const Stream& stream = {});
  /// Collective. Reduces and updates the remaining buckets; values are final on return, and gradients may be
  /// written to. Waits for the work enqueued on `stream`.
  Status end_backward(const Stream& stream = {});
  /// While on, grad_ready and end_backward do nothing and steps are not counted: the caller accumulates
  /// gradients. Turn it off before the last micro-batch.
  void set_accumulate(bool on);

  /// The places of the whole values and gradients.
  std::span<const Param> params() const;
  /// Blocks consist of equal parts for all shards: rank r of the shard group has part r. Blocks may have
  /// equal lengths.
  std::span<const BucketLayout> buckets() const;
  /// The parts that this rank updates, bucket by bucket: views of the values in params(), without gradients.
  std::span<const Param> shard() const;
  double lr() const;     ///< rate of the next update
  double scale() const;  ///< factor by which to multiply the loss; 1 without a scaler
  /// The norm of the last step's gradient, before clipping; NaN unless clip_norm is set.
  double grad_norm() const;
  std::int64_t steps() const;  ///< number of completed training steps, including skipped ones

  /// Saves everything the next steps depend on and this rank owns: the values of its shard, its optimisers'
  /// states, schedules, scaler. Between steps, each rank on its own.
  Result<Bytes> save();
  /// Collective. Loads what each rank saved into a trainer that was made with equal arguments and has taken
  /// no step. Values are gathered, and the next steps have the same bits. Errors, on all ranks, with nothing
  /// changed: invalid (damaged, of another rank, of another model or options, of different steps).
  Status load(CBytes);

  /// Collective: waits until no rank needs this one any more, then ends. Idempotent. The destructor does not
  /// wait: work in flight ends as `revoked` on the other ranks.
  Status close();
  Status status() const;  ///< the error that ended the trainer, or ok

  ShardedTrainer(ShardedTrainer&&) noexcept;             ///< leaves the source an empty handle
  ShardedTrainer& operator=(ShardedTrainer&&) noexcept;  ///< also destroys the previous trainer
  ~ShardedTrainer();

  struct OURO_HIDDEN State;
  OURO_HIDDEN explicit ShardedTrainer(std::shared_ptr<State>);  ///< for the library

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ouro::train
