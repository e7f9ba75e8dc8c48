// One training step of a sharded trainer: gradients become ready, buckets are reduced, updated and gathered;
// and how a step fails. See shard.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "api/train/common/caught.h"
#include "api/train/optim/update.h"
#include "api/train/optim/zero_missing.h"
#include "api/train/sharded/shard_state.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

using State = ShardedTrainer::State;

}  // namespace

void State::abort(const std::string& why) {
  for (ShardSide* side : {&shards, &replicas})
    if (!side->alone()) side->abort(why);
}

Status State::fail(Status s) {
  if (!failure.ok()) return failure;
  const std::string why = keep(s);
  // Members of one group detect a lost peer by themselves; ranks on the other side of the mesh cannot.
  const bool one_group = shards.alone() || replicas.alone();
  if (failure.code() != Code::peer_lost || !one_group) abort(why);
  for (const ShardBucket& b : buckets) (void)b.work.wait().ok();
  return failure;
}

// ---- the calls ------------------------------------------------------------------------------------

Status ShardedTrainer::begin_step(bool training) {
  const StandardFloats floats;
  return state_->begin_step(training);
}

Status ShardedTrainer::grad_ready(int param, const Stream& stream) {
  State& s = *state_;
  const StandardFloats floats;
  const Result<bool> noted = s.grad_ready(s.params, param, stream);
  if (!noted.ok() || !*noted) return noted.status();
  --s.buckets[s.bucket_of[static_cast<std::size_t>(param)]].unready;
  // Launched in the order of buckets, which is the same on all ranks.
  const auto launch = [&]() -> Status {
    while (s.launched < s.buckets.size() && s.buckets[s.launched].unready == 0) s.launch(s.launched++);
    return {};
  };
  if (Status done = caught(launch); !done.ok()) return s.fail(std::move(done));
  return {};
}

Status ShardedTrainer::end_backward(const Stream& stream) {
  State& s = *state_;
  const StandardFloats floats;
  const Result<bool> ends = s.end_backward();
  if (!ends.ok() || !*ends) return ends.status();
  bool skipped = false;
  const auto finish = [&]() -> Status {
    OURO_TRY(stream.synchronize());
    OURO_TRY(zero_missing(std::span(s.buckets), s.ready, s.options.find_unused, s.steps));
    while (s.launched < s.buckets.size()) s.launch(s.launched++);
    OURO_TRY(s.wait_for_buckets());
    if (!s.defers()) return {};
    OURO_ASSIGN(const auto decided, s.decide());
    skipped = decided.skip;
    if (skipped) return {};
    for (std::size_t k = 0; k < s.buckets.size(); ++k) {
      s.buckets[k].step.scale.clip = decided.clip;
      s.buckets[k].work = s.pool->by_key(k).run([&s, k] { return s.update(k); });
    }
    return s.wait_for_buckets();
  };
  if (Status done = caught(finish); !done.ok()) return s.fail(std::move(done));
  s.finish(skipped);
  return {};
}

// ---- in the training thread -----------------------------------------------------------------------

void State::launch(std::size_t k) {
  ShardBucket& b = buckets[k];
  b.step = {};
  if (b.schedule) b.step.lr = b.schedule->lr();
  if (options.scaler) b.step.scale.inverse = 1 / options.scaler->scale;
  b.work = pool->by_key(k).run([this, k] {
    OURO_TRY(reduce(k));
    return defers() ? Status{} : update(k);
  });
}

Status State::wait_for_buckets() const {
  for (const ShardBucket& b : buckets) OURO_TRY(b.work.wait());
  return {};
}

Result<State::Decision> State::decide() {
  double sums[] = {0, 0};  // sum of squares; number of buckets that are not finite
  for (const ShardBucket& b : buckets) {
    sums[0] += b.survey.norm * b.survey.norm;
    sums[1] += b.survey.finite ? 0 : 1;
  }
  // Reduced in rank order, so that replicas, which all have the same shards, decide equally to the last bit.
  if (!shards.alone())
    OURO_TRY(all_reduce(shards.control, std::span<const double>(sums), std::span<double>(sums), ReduceOp::sum,
                        {.numerics = Numerics::canonical, .algorithm = kAuto.algorithm}));
  const GradientSurvey all{.finite = sums[1] == 0, .norm = std::sqrt(sums[0])};
  if (options.clip_norm > 0) norm = all.norm;
  return Decision{.skip = options.scaler && !all.finite, .clip = all.clip_factor(options.clip_norm)};
}

void State::finish(bool skipped) {
  if (options.scaler) options.scaler->update(!skipped);
  for (ShardBucket& b : buckets) {
    if (b.schedule && !skipped) b.schedule->step();
    b.unready = b.params.size();
  }
  launched = 0;
  end_step();
}

// ---- on a bucket's stream -------------------------------------------------------------------------

View State::part(const Block& block) const {
  const std::size_t length = block.view().count / static_cast<std::size_t>(shards.size);
  return block.view(static_cast<std::size_t>(shards.rank) * length, length);
}

Status State::reduce(std::size_t k) {
  ShardBucket& b = buckets[k];
  for (const int p : b.layout.params) OURO_TRY(events[static_cast<std::size_t>(p)].synchronize());
  for (std::size_t i = 0; i < b.params.size() && !options.grads_in_bucket; ++i)
    OURO_TRY(copy_view(b.grad.view(b.layout.offsets[i], b.params[i].grad.count), b.params[i].grad));
  const CallOptions call{.numerics = options.numerics};
  const View mean = part(b.grad);
  if (!shards.alone()) OURO_TRY(reduce_scatter(shards.lane_of(k), b.grad.view(), mean, ReduceOp::avg, call));
  if (!replicas.alone()) OURO_TRY(all_reduce(replicas.lane_of(k), mean, mean, ReduceOp::avg, call));
  if (!defers()) return {};
  std::vector<CView> gradients_here;
  for (const Param& p : b.mine) gradients_here.push_back(p.grad);
  OURO_ASSIGN(b.survey, survey_gradients(gradients_here, b.step.scale.inverse));
  return {};
}

Status State::update(std::size_t k) {
  OURO_TRY(buckets[k].optimizer->step(buckets[k].mine, buckets[k].step));
  return gather(k);
}

Status State::gather(std::size_t k) {
  ShardBucket& b = buckets[k];
  if (shards.alone()) return {};
  Group& lane = shards.lane_of(k);
  if (b.value) return all_gather(lane, part(b.value), b.value.view());
  for (const Param& p : b.mine) OURO_TRY(copy_view(p.grad, p.value));  // the update is done with the gradient
  OURO_TRY(all_gather(lane, part(b.grad), b.grad.view()));
  for (std::size_t i = 0; i < b.params.size(); ++i)
    OURO_TRY(copy_view(b.params[i].value, b.grad.view(b.layout.offsets[i], b.params[i].value.count)));
  return {};
}

}  // namespace ouro::train
