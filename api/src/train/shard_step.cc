// One training step of a sharded trainer: gradients become ready, buckets are reduced, updated and gathered;
// how a step fails. See shard.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "api/src/not_in_batch.h"
#include "api/src/train/shard_state.h"
#include "api/src/train/update.h"
#include "api/src/train/zero_missing.h"

namespace ouro::train {
namespace {

using State = ShardedTrainer::State;

// What a rank does wrong alone reaches the others as the end of their groups, with this in the text; and so
// does the loss of a peer, which only its own shard and replica group can see.
constexpr std::string_view kMisuse = "in sharded training: ", kLost = "a peer of another rank was lost: ";

/// A failure as its cause.
Status as_told(const Status& s) {
  if (s.reason() != Reason::revoked) return s;
  for (const bool lost : {false, true}) {
    const std::string_view mark = lost ? kLost : kMisuse;
    const std::size_t at = s.failure()->text.find(mark);
    if (at == std::string::npos) continue;
    Failure f = *s.failure();
    f.reason = lost ? Reason::peer_dead : Reason::mismatch;
    f.text = f.text.substr(lost ? at : at + mark.size());
    if (lost) f.rank = -1, f.pid = 0, f.host.clear();  // they are those of the messenger
    return Status(std::move(f));
  }
  return s;
}

}  // namespace

Status State::usable() const {
  OURO_TRY(not_in_batch("ShardedTrainer"));
  OURO_TRY(failure);
  return closed ? invalid("the trainer is closed") : Status{};
}

void State::abort(const std::string& why) {  // without effect on a group that has failed already
  for (ShardSide* side : {&shards, &replicas}) {
    if (side->alone()) continue;
    side->control.abort(why);
    for (Group& lane : side->lanes) lane.abort(why);
  }
}

Status State::fail(Status s) {
  if (!failure.ok()) return failure;
  failure = as_told(s);
  const std::string& what = failure.failure()->text;
  if (failure.code() == Code::peer_lost) {
    // Members of a group find that out by themselves.
    if (!shards.alone() && !replicas.alone())
      abort(what.starts_with(kLost) ? what : fmt::format("{}{}", kLost, failure.message()));
  } else if (failure.code() == Code::invalid) {
    const bool own = s.code() == Code::invalid;  // else it is passed on to the other side of the mesh
    abort(own ? fmt::format("{}rank {}: {}", kMisuse, world_rank, what) : fmt::format("{}{}", kMisuse, what));
  } else {
    abort(what);
  }
  for (const ShardBucket& b : buckets) (void)b.work.wait().ok();
  return failure;
}

// ---- the calls ------------------------------------------------------------------------------------

Status ShardedTrainer::begin_step(bool training) {
  State& s = *state_;
  OURO_TRY(s.usable());
  if (s.open && s.gradients > 0)
    return invalid("begin_step: gradients of this step are ready already; expected end_backward");
  s.open = training && !s.accumulating;
  return {};
}

Status ShardedTrainer::grad_ready(int param, const Stream& stream) {
  State& s = *state_;
  OURO_TRY(s.usable());
  const auto i = static_cast<std::size_t>(param);
  if (param < 0 || i >= s.params.size())
    return invalid(fmt::format("grad_ready: parameter {} of {}", param, s.params.size()));
  const Param& p = s.params[i];
  if (frozen(p)) return invalid(fmt::format("grad_ready: parameter '{}' is frozen", p.name));
  if (s.accumulating) return {};
  if (!s.open) return invalid("grad_ready: no training step; expected begin_step before the forward pass");
  if (s.ready[i])
    return invalid(fmt::format("grad_ready: the gradient of '{}' was ready in this step already", p.name));
  s.ready[i] = true;
  s.events[i].record(stream);
  ++s.gradients;
  --s.buckets[s.bucket_of[i]].unready;
  // In the order of buckets, which all ranks share.
  while (s.launched < s.buckets.size() && s.buckets[s.launched].unready == 0) s.launch(s.launched++);
  return {};
}

Status ShardedTrainer::end_backward(const Stream& stream) {
  State& s = *state_;
  OURO_TRY(s.usable());
  if (s.accumulating) return {};
  if (!s.open) return invalid("end_backward: no training step; expected begin_step before the forward pass");
  bool skipped = false;
  const auto finish = [&]() -> Status {
    OURO_TRY(stream.synchronize());
    OURO_TRY(zero_missing(std::span(s.buckets), s.ready, s.options.find_unused, s.steps));
    while (s.launched < s.buckets.size()) s.launch(s.launched++);
    OURO_TRY(s.wait_for_buckets());
    if (!s.defers()) return {};
    const auto decided = s.decide();
    OURO_TRY(decided.status());
    skipped = decided->skip;
    if (skipped) return {};
    for (std::size_t k = 0; k < s.buckets.size(); ++k) {
      s.buckets[k].step.scale.clip = decided->clip;
      s.buckets[k].work = s.pool->by_key(k).run([&s, k] { return s.update(k); });
    }
    return s.wait_for_buckets();
  };
  if (Status done = finish(); !done.ok()) return s.fail(std::move(done));
  s.end_step(skipped);
  return {};
}

// ---- in the thread that trains --------------------------------------------------------------------

double State::rate() const {
  const ShardBucket& first = buckets.front();
  return first.schedule ? first.schedule->lr() : first.optimizer->lr();
}

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
  double sums[] = {0, 0};  // of squares; of buckets that are not finite
  for (const ShardBucket& b : buckets) {
    sums[0] += b.survey.norm * b.survey.norm;
    sums[1] += b.survey.finite ? 0 : 1;
  }
  // In rank order, so that replicas, which all have the same shards, decide alike to the last bit.
  if (!shards.alone())
    OURO_TRY(all_reduce(shards.control, std::span<const double>(sums), std::span<double>(sums), ReduceOp::sum,
                        {.numerics = Numerics::canonical}));
  const GradientSurvey all{.finite = sums[1] == 0, .norm = std::sqrt(sums[0])};
  if (options.clip_norm > 0) norm = all.norm;
  return Decision{.skip = options.scaler && !all.finite, .clip = all.clip_factor(options.clip_norm)};
}

void State::end_step(bool skipped) {
  if (options.scaler) options.scaler->update(!skipped);
  for (ShardBucket& b : buckets) {
    if (b.schedule && !skipped) b.schedule->step();
    b.unready = b.params.size();
  }
  lr = rate();
  ++steps;
  open = false;
  gradients = launched = 0;
  ready.assign(params.size(), false);
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
  if (!shards.alone())
    OURO_TRY(reduce_scatter(shards.lanes[k % shards.lanes.size()], b.grad.view(), mean, ReduceOp::avg, call));
  if (!replicas.alone())
    OURO_TRY(all_reduce(replicas.lanes[k % replicas.lanes.size()], mean, mean, ReduceOp::avg, call));
  if (!defers()) return {};
  std::vector<CView> gradients_here;
  for (const Param& p : b.mine) gradients_here.push_back(p.grad);
  auto survey = survey_gradients(gradients_here, b.step.scale.inverse);
  OURO_TRY(survey.status());
  b.survey = *survey;
  return {};
}

Status State::update(std::size_t k) {
  OURO_TRY(buckets[k].optimizer->step(buckets[k].mine, buckets[k].step));
  return gather(k);
}

Status State::gather(std::size_t k) {
  ShardBucket& b = buckets[k];
  if (shards.alone()) return {};
  Group& lane = shards.lanes[k % shards.lanes.size()];
  if (b.value) return all_gather(lane, part(b.value), b.value.view());
  for (const Param& p : b.mine) OURO_TRY(copy_view(p.grad, p.value));  // the update is done with the gradient
  OURO_TRY(all_gather(lane, part(b.grad), b.grad.view()));
  for (std::size_t i = 0; i < b.params.size(); ++i)
    OURO_TRY(copy_view(b.params[i].value, b.grad.view(b.layout.offsets[i], b.params[i].value.count)));
  return {};
}

}  // namespace ouro::train
