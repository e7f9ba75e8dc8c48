/// Decentralised data parallelism: each rank trains its own copy of a model and averages it with its
/// neighbours' copies while it computes the next gradient. For users.
/// @file
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ouro/train/bucket.hpp"
#include "ouro/train/optim.hpp"
#include "ouro/train/param.hpp"
#include "ouro/train/scaler.hpp"
#include "ouro/train/schedule.hpp"
#include "ouro/train/topology.hpp"

namespace ouro::train {

/// The gradients over which a norm is taken. bucket: keeps the overlap, but the result depends on bucket_mb.
/// global: all parameters of this rank; updates wait for the end of the backward pass.
enum class ClipScope { bucket, global };

/// Which round of the topology mixes in step t = 1, 2, ... sequential: t - 1. upstream: 1, then t + 1, as
/// Decent-DP counts.
enum class RoundOrder { sequential, upstream };

/// Called before each mix of a bucket, in the training thread. `row`: the row with which the exchange was
/// launched; `neighbours`: sum of in.weight * x_in; `params`: the block, still as the last step left it.
/// Needs params_in_bucket. Must not be set for topologies that keep two vectors.
using PreMix = std::function<Status(int bucket, const Row& row, CView neighbours, View params)>;

/// Options of a GossipTrainer; must be equal on all ranks.
struct GossipOptions {
  Topology topology;                         ///< which ranks average in which step
  OptimizerFactory optimizer;                ///< called once per bucket, with its parameters
  ScheduleFactory schedule{};                ///< called once per bucket; none: the optimiser's own rate
  double bucket_mb = 25;                     ///< bucket size in MiB; 0: one bucket per parameter
  double clip_norm = 0;                      ///< g *= min(1, clip_norm / (||g|| + 1e-6)); 0: no clipping
  ClipScope clip_scope = ClipScope::bucket;  ///< the gradients over which the norm is taken
  /// After the first step, values are views of their bucket's block: access them through params(); the
  /// caller's memory is not touched any more. If false, values are not moved, with the same results.
  bool params_in_bucket = true;
  bool grads_in_bucket = false;  ///< the same for gradients
  bool average_buffers = false;  ///< global_average includes floating-point buffers
  bool sync_all = true;          ///< at the start, rank 0 also sends its frozen parameters and buffers
  /// A gradient that is missing at the end of a backward pass counts as zero, and zeros are written to it; if
  /// false, it is an error on all ranks. The order of buckets is then rank 0's.
  bool find_unused = false;
  RoundOrder order = RoundOrder::sequential;  ///< which round mixes in which step
  std::optional<GradScaler> scaler{};         ///< GradScaler::scale is the scale of the first step
  PreMix pre_mix{};                           ///< called before each mix of a bucket; none: no call
};

/// Options of GossipTrainer::global_average().
struct GlobalAverageOptions {
  bool keep = false;      ///< true: the mean is kept; false: the values are restored
  bool distance = false;  ///< fill in Average::distance
};

/// The mean of all ranks is in effect while this object lives (or permanently, with `keep`).
class OURO_API Average {
 public:
  /// || mean - x ||_2 over all parameters of this rank; NaN unless requested.
  double distance = std::numeric_limits<double>::quiet_NaN();
  /// Restores parameters and buffers. invalid: the second time, or after `keep`.
  Status revert();

  struct OURO_HIDDEN Saved;
  OURO_HIDDEN explicit Average(std::unique_ptr<Saved>);  ///< for the library
  Average(Average&&) noexcept;                           ///< leaves the source with nothing to revert
  Average& operator=(Average&&) noexcept;                ///< first reverts the average it held
  ~Average();                                            ///< reverts if necessary

 private:
  std::unique_ptr<Saved> saved_;
};

/// With X_t the parameters that forward pass t sees, G_t its gradients, U the optimiser's increment, a the
/// adaptive factor and W_t the mixing matrix of step t:
///
///     t = 0 :  X_1     = X_0 + U(G_0; X_0)
///     t >= 1:  Y_t     = (1-a) X_t + a W_t X_t ;   X_{t+1} = Y_t + U(G_t; Y_t)
///
/// The exchange of X_t starts, bucket by bucket on the streams of a pool, as soon as X_t is final, and
/// overlaps forward and backward pass t; updates run in the calling thread. If a topology keeps two vectors
/// (ceca-2p), the increment is added to both.
///
/// A training step is: begin_step; forward and backward pass, with grad_ready for each gradient;
/// end_backward. One thread drives a trainer. Parameters whose `grad` is null at the start are frozen.
/// Neighbours may drift apart by at most one step.
///
/// Errors: invalid (arguments, or calls out of turn; nothing changes). Any other failure, and any
/// disagreement between ranks, ends the trainer on all ranks: every later call returns the first error.
/// Disagreement and missing gradients are `invalid` on all ranks, whichever rank misses them.
class OURO_API GossipTrainer {
 public:
  /// Collective. All ranks must agree on names, shapes, types, order and options; then all take rank 0's
  /// values. Only the trainer may use `group`. Trainable parameters are f64, f32, bf16 or f16, on the host or
  /// on this rank's GPU (whose exchanges pass through the host). Errors: invalid (on all ranks: no parameter,
  /// a name or memory twice, a shape that does not fit, a topology of another size, options), unsupported
  /// (two vectors on a GPU).
  static Result<GossipTrainer> create(Group& group, std::vector<Param>, std::vector<Buffer>, GossipOptions);

  /// Call before the forward pass. `training` false: a pass without training, which does not count as a step.
  Status begin_step(bool training = true);
  /// The gradient of parameter `param` (its index in the list) is complete, or will be once the work now
  /// enqueued on `stream` has run. Once all gradients of a bucket are ready, the bucket is updated, if its
  /// neighbours' values have already arrived.
  Status grad_ready(int param, const Stream& stream = {});
  /// The same for a gradient that is located at `grad` in this step instead of in the parameter's own
  /// memory. The calling thread reads it until end_backward returns. invalid: another count, type or device,
  /// or grads_in_bucket.
  Status grad_ready(int param, CView grad, const Stream& stream = {});
  /// Collective. Updates the remaining buckets; X_{t+1} is final on return. Waits for the work enqueued
  /// on `stream`.
  Status end_backward(const Stream& stream = {});
  /// While on, grad_ready and end_backward do nothing and steps are not counted: the caller accumulates
  /// gradients. Turn it off before the last micro-batch.
  void set_accumulate(bool on);

  /// The present places of values and gradients: until the end of the first step, those that were given.
  std::span<const Param> params() const;
  std::span<const BucketLayout> buckets() const;  ///< empty before the end of the first step
  Status set_adaptive_factor(double a);           ///< adaptive factor of later mixes, in [0, 1]
  double lr() const;                              ///< rate of the next update; 0 before the first
  double scale() const;        ///< factor by which to multiply the loss; 1 without a scaler
  std::int64_t steps() const;  ///< number of completed training steps

  /// Collective, between steps. Waits for pending exchanges, then x <- mean of x over all parameters
  /// (including frozen ones) and, with average_buffers, buffers; integers are left unchanged. With `keep`,
  /// the pending exchange is dropped and the next step does not mix; all ranks must pass the same `keep`. A
  /// failure ends the trainer and leaves the values as they were. Errors: unsupported (`keep` for 16-bit
  /// parameters, whose f32 master copies would undo it).
  Result<Average> global_average(const GlobalAverageOptions& = {});

  /// Saves everything the next steps depend on: values of trainable parameters, optimisers, schedules,
  /// scaler, and received values that are not mixed yet. Between steps, each rank on its own; waits for
  /// pending exchanges.
  Result<Bytes> save();
  /// Collective. Loads into a trainer that was made with equal arguments and has taken no step: the next
  /// steps have the same bits. Errors, on every rank, with nothing changed: invalid (damaged, of another
  /// rank, model or options; states of different steps), resource.
  Status load(CBytes);

  /// Collective: waits until neighbours have taken everything they still need from this rank, then ends.
  /// Idempotent. The destructor does not wait: exchanges in flight end as `revoked` on the neighbours.
  Status close();
  Status status() const;  ///< the error that ended the trainer, or ok

  GossipTrainer(GossipTrainer&&) noexcept;             ///< leaves the source an empty handle
  GossipTrainer& operator=(GossipTrainer&&) noexcept;  ///< also destroys the previous trainer
  ~GossipTrainer();

  struct OURO_HIDDEN State;
  OURO_HIDDEN explicit GossipTrainer(std::shared_ptr<State>);  ///< for the library

 private:
  std::shared_ptr<State> state_;
};

}  // namespace ouro::train
