// The calls of one training step: gradients become ready, the first step makes the buckets; and how a step
// fails. See gossip.hpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/train/common/caught.h"
#include "api/train/common/comparison.h"
#include "api/train/common/param_checks.h"
#include "api/train/gossip/gossip_state.h"
#include "api/train/optim/update.h"
#include "api/train/optim/zero_missing.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

using State = GossipTrainer::State;

}  // namespace

Status State::fail(Status s) {
  if (!failure.ok()) return failure;
  const std::string why = keep(s);
  if (failure.code() != Code::peer_lost) abort(why);  // each rank detects a lost peer by itself
  return failure;
}

Status State::settle() {
  for (const GossipBucket& b : buckets) OURO_TRY(b.exchange.wait());
  return {};
}

// ---- the calls ------------------------------------------------------------------------------------

Status GossipTrainer::begin_step(bool training) {
  const StandardFloats floats;
  return state_->begin_step(training);
}

Status GossipTrainer::grad_ready(int param, const Stream& stream) {
  State& s = *state_;
  const StandardFloats floats;
  const Result<bool> noted = s.grad_ready(s.params, param, stream);
  return noted.ok() && *noted ? s.arrived(param) : noted.status();
}

Status GossipTrainer::grad_ready(int param, CView grad, const Stream& stream) {
  State& s = *state_;
  const auto i = static_cast<std::size_t>(param);
  if (param >= 0 && i < s.params.size() && !frozen(s.params[i])) {
    const View& own = s.params[i].grad;
    if (grad.count != own.count || grad.dtype != own.dtype || grad.device != own.device)
      return invalid(fmt::format(
          "grad_ready: the gradient of '{}' is of another count, type or device than it", s.params[i].name));
    if (grad.data == nullptr && grad.count > 0)
      return invalid(fmt::format("grad_ready: the gradient of '{}' is a null pointer", s.params[i].name));
    if (s.options.grads_in_bucket)
      return invalid("grad_ready: gradients are in buckets (grads_in_bucket), and this one lies elsewhere");
  }
  const Result<bool> noted = s.grad_ready(s.params, param, stream);
  if (!noted.ok() || !*noted) return noted.status();
  const StandardFloats floats;
  s.elsewhere.emplace_back(param, s.params[i].grad.data);
  s.point_gradient(param, const_cast<void*>(grad.data));  // const_cast: updates do not write gradients
  return s.arrived(param);
}

Status State::arrived(int param) {
  traced.push_back(param);
  if (buckets.empty()) return {};
  --buckets[bucket_of[static_cast<std::size_t>(param)]].unready;
  if (defers()) return {};
  if (Status done = caught([&] { return advance(false); }); !done.ok()) return fail(std::move(done));
  return {};
}

void State::point_gradient(int param, void* at) {
  const auto i = static_cast<std::size_t>(param);
  params[i].grad.data = at;
  if (buckets.empty()) return;
  GossipBucket& b = buckets[bucket_of[i]];
  const auto place =
      std::find(b.layout.params.begin(), b.layout.params.end(), param) - b.layout.params.begin();
  b.params[static_cast<std::size_t>(place)].grad.data = at;
}

Status GossipTrainer::end_backward(const Stream& stream) {
  State& s = *state_;
  const StandardFloats floats;
  const Result<bool> ends = s.end_backward();
  if (!ends.ok() || !*ends) return ends.status();
  const auto finish = [&]() -> Status {
    OURO_TRY(stream.synchronize());
    if (s.buckets.empty())
      OURO_TRY(s.trace());
    else if (s.traced.size() < s.trainable.size())
      OURO_TRY(zero_missing(std::span(s.buckets), s.ready, s.options.find_unused, s.steps));
    std::vector<StepScale> decided;
    if (s.defers()) {
      OURO_ASSIGN(decided, s.survey_all());
    }
    return s.advance(true, decided);
  };
  if (Status done = caught(finish); !done.ok()) return s.fail(std::move(done));
  if (s.options.scaler && s.options.scaler->scope == ScalerScope::local)
    s.options.scaler->update(
        std::all_of(s.buckets.begin(), s.buckets.end(), [](const auto& b) { return b.finite; }));
  s.end_step();
  for (const auto& [param, own] : s.elsewhere) s.point_gradient(param, own);
  s.elsewhere.clear();
  s.traced.clear();
  s.launched = 0;
  for (GossipBucket& b : s.buckets) b.unready = b.params.size(), b.updated = false;
  return {};
}

// ---- the first step -------------------------------------------------------------------------------

Status State::trace() {
  std::vector<std::int32_t> order(traced.begin(), traced.end());
  for (const int p : trainable)
    if (!ready[static_cast<std::size_t>(p)]) order.push_back(p);
  Digest d;
  for (const std::int32_t p : order) d.add(p);
  const std::size_t missing = trainable.size() - traced.size();
  const std::uint64_t mine[] = {d.value(), missing,
                                missing > 0 ? static_cast<std::uint64_t>(order[traced.size()]) : 0};
  std::vector<std::uint64_t> all(std::size(mine) * static_cast<std::size_t>(control.size()));
  OURO_TRY(all_gather(control, std::span<const std::uint64_t>(mine), std::span(all), kAuto));
  if (options.find_unused) {
    OURO_TRY(broadcast(control, std::span<const std::int32_t>(order), std::span(order), 0, kAuto));
  } else {
    for (std::size_t r = 0; r < all.size() / std::size(mine); ++r) {
      const std::uint64_t* theirs = &all[r * std::size(mine)];
      if (theirs[1] > 0)
        return invalid(fmt::format(
            "rank {} has no gradient of parameter '{}' ({} missing); expected all, or find_unused",
            control.ranks()[r], params[theirs[2]].name, theirs[1]));
    }
    for (std::size_t r = 0; r < all.size() / std::size(mine); ++r)
      if (all[r * std::size(mine)] != all[0])
        return invalid(
            fmt::format("gradients become ready in another order on rank {} than on rank {}; here: {}",
                        control.ranks()[r], control.ranks()[0], fmt::join(order, ",")));
  }
  Status made = make_buckets(order);
  Digest rules;
  if (made.ok())
    for (const GossipBucket& b : buckets) b.add_rule(&rules);
  const Claim claim{"another optimiser or schedule", rules.value()};
  OURO_TRY(compare(control, "end_backward", {&claim, 1}, made));
  return zero_missing(std::span(buckets), ready, options.find_unused, steps);
}

Status State::make_buckets(std::span<const int> order) {
  OURO_ASSIGN(auto plan, plan_buckets(params, order, options.bucket_mb));
  OURO_ASSIGN(auto streams, StreamPool::create(static_cast<int>(std::min(plan.size(), lanes.size()))));
  std::vector<GossipBucket> made(plan.size());
  bucket_of.resize(params.size());
  for (std::size_t k = 0; k < made.size(); ++k) {
    made[k].layout = plan[k];
    for (const int p : made[k].layout.params) bucket_of[static_cast<std::size_t>(p)] = k;
    OURO_TRY(fill(made[k]));
  }
  for (const GossipBucket& b : made)
    for (std::size_t i = 0; i < b.params.size(); ++i)
      params[static_cast<std::size_t>(b.layout.params[i])] = b.params[i];
  pool = std::move(streams);
  layouts = std::move(plan);
  buckets = std::move(made);
  return {};
}

/// Allocates only the memory that the bucket needs.
Status State::fill(GossipBucket& b) {
  for (const int p : b.layout.params) b.params.push_back(params[static_cast<std::size_t>(p)]);
  OURO_TRY(b.make(b.message));
  if (options.params_in_bucket) OURO_TRY(b.make(b.value));
  if (options.grads_in_bucket) OURO_TRY(b.make(b.grad));
  if (options.topology.vectors() == 2) OURO_TRY(b.make(b.second));
  OURO_TRY(b.make_rule(options.optimizer, b.params, options.schedule));
  for (std::size_t i = 0; i < b.params.size(); ++i) {
    const auto p = static_cast<std::size_t>(b.layout.params[i]);
    OURO_TRY(events[p].synchronize());
    if (b.value) OURO_TRY(b.move_value(i));
    if (b.grad) OURO_TRY(b.move_grad(i));
    if (b.second)
      OURO_TRY(copy_view(b.second.view(b.layout.offsets[i], b.params[i].value.count), b.params[i].value));
    b.unready += ready[p] ? 0 : 1;
  }
  return {};
}

}  // namespace ouro::train
