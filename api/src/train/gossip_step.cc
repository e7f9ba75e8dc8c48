// One training step as it is called: gradients become ready, the first step makes buckets; how a step fails.
// See gossip.hpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/src/not_in_batch.h"
#include "api/src/train/comparison.h"
#include "api/src/train/gossip_state.h"
#include "api/src/train/update.h"
#include "api/src/train/zero_missing.h"

namespace ouro::train {
namespace {

// What a rank does wrong alone reaches the others as the end of their groups, with this in the text.
constexpr std::string_view kMisuse = "in decentralised training: ";

/// A failure as its cause: misuse by a rank is `mismatch` on all.
Status as_told(const Status& s) {
  if (s.reason() != Reason::revoked) return s;
  const std::size_t at = s.failure()->text.find(kMisuse);
  if (at == std::string::npos) return s;
  Failure f = *s.failure();
  f.reason = Reason::mismatch;
  f.text = f.text.substr(at + kMisuse.size());
  return Status(std::move(f));
}

using State = GossipTrainer::State;

}  // namespace

Status State::usable() const {
  OURO_TRY(not_in_batch("GossipTrainer"));
  OURO_TRY(failure);
  return closed ? invalid("the trainer is closed") : Status{};
}

Status State::fail(Status s) {
  if (!failure.ok()) return failure;
  failure = as_told(s);
  if (failure.code() == Code::peer_lost) return failure;  // each rank finds that out by itself
  const std::string& what = failure.failure()->text;
  const std::string text =
      s.code() == Code::invalid ? fmt::format("{}rank {}: {}", kMisuse, control.rank(), what) : what;
  control.abort(text);  // without effect on a group that has failed already
  for (Group& lane : lanes) lane.abort(text);
  return failure;
}

Status State::settle() {
  for (const GossipBucket& b : buckets) OURO_TRY(b.exchange.wait());
  return {};
}

// ---- the calls ------------------------------------------------------------------------------------

Status GossipTrainer::begin_step(bool training) {
  State& s = *state_;
  OURO_TRY(s.usable());
  const bool started = s.open && !s.traced.empty();
  if (started) return invalid("begin_step: gradients of this step are ready already; expected end_backward");
  if (!training || s.accumulating) {
    s.open = false;
    return {};
  }
  if (s.averaged) return invalid("begin_step: an average is in force; expected Average::revert first");
  s.open = true;
  return {};
}

Status GossipTrainer::grad_ready(int param, const Stream& stream) {
  State& s = *state_;
  OURO_TRY(s.usable());
  const auto i = static_cast<std::size_t>(param);
  if (param < 0 || i >= s.params.size())
    return invalid(fmt::format("grad_ready: parameter {} of {}", param, s.params.size()));
  const Param& p = s.params[i];
  if (p.grad.data == nullptr) return invalid(fmt::format("grad_ready: parameter '{}' is frozen", p.name));
  if (s.accumulating) return {};
  if (s.averaged) return invalid("grad_ready: an average is in force; expected Average::revert first");
  if (!s.open) return invalid("grad_ready: no training step; expected begin_step before the forward pass");
  if (s.ready[i])
    return invalid(fmt::format("grad_ready: the gradient of '{}' was ready in this step already", p.name));
  s.ready[i] = true;
  s.events[i].record(stream);
  s.traced.push_back(param);
  if (s.buckets.empty()) return {};
  --s.buckets[s.bucket_of[i]].unready;
  if (s.defers()) return {};
  if (Status done = s.pump(false); !done.ok()) return s.fail(std::move(done));
  return {};
}

Status GossipTrainer::end_backward(const Stream& stream) {
  State& s = *state_;
  OURO_TRY(s.usable());
  if (s.accumulating) return {};
  if (s.averaged) return invalid("end_backward: an average is in force; expected Average::revert first");
  if (!s.open) return invalid("end_backward: no training step; expected begin_step before the forward pass");
  const auto finish = [&]() -> Status {
    OURO_TRY(stream.synchronize());
    if (s.buckets.empty())
      OURO_TRY(s.trace());
    else if (s.traced.size() < s.trainable.size())
      OURO_TRY(zero_missing(std::span(s.buckets), s.ready, s.options.find_unused, s.steps));
    std::vector<StepScale> decided;
    if (s.defers()) {
      auto surveyed = s.survey_all();
      OURO_TRY(surveyed.status());
      decided = std::move(*surveyed);
    }
    return s.pump(true, decided);
  };
  if (Status done = finish(); !done.ok()) return s.fail(std::move(done));
  if (s.options.scaler && s.options.scaler->scope == ScalerScope::local)
    s.options.scaler->update(
        std::all_of(s.buckets.begin(), s.buckets.end(), [](const auto& b) { return b.finite; }));
  ++s.steps;
  s.open = false;
  s.traced.clear();
  s.launched = 0;
  s.ready.assign(s.params.size(), false);
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
  OURO_TRY(all_gather(control, std::span<const std::uint64_t>(mine), std::span(all)));
  if (options.find_unused) {
    OURO_TRY(broadcast(control, std::span<const std::int32_t>(order), std::span(order), 0));
  } else {
    for (std::size_t r = 0; r < all.size() / std::size(mine); ++r) {
      const std::uint64_t* theirs = &all[r * std::size(mine)];
      if (theirs[1] > 0)
        return invalid(fmt::format(
            "rank {} has no gradient of parameter '{}' ({} missing); expected all, or find_unused", r,
            params[theirs[2]].name, theirs[1]));
    }
    for (std::size_t r = 0; r < all.size() / std::size(mine); ++r)
      if (all[r * std::size(mine)] != all[0])
        return invalid(
            fmt::format("gradients become ready in another order on rank {} than on rank 0; here: {}", r,
                        fmt::join(order, ",")));
  }
  OURO_TRY(make_buckets(order));
  return zero_missing(std::span(buckets), ready, options.find_unused, steps);
}

Status State::make_buckets(std::span<const int> order) {
  auto plan = plan_buckets(params, order, options.bucket_mb);
  OURO_TRY(plan.status());
  auto streams = StreamPool::create(static_cast<int>(std::min(plan->size(), lanes.size())));
  OURO_TRY(streams.status());
  std::vector<GossipBucket> made(plan->size());
  bucket_of.resize(params.size());
  for (std::size_t k = 0; k < made.size(); ++k) {
    GossipBucket& b = made[k];
    b.layout = (*plan)[k];
    const auto block = [&](Block& to) -> Status {
      auto memory = Block::make(b.layout.dtype, b.layout.device, b.layout.length);
      OURO_TRY(memory.status());
      to = std::move(*memory);
      return {};
    };
    for (const int p : b.layout.params) {
      b.params.push_back(params[static_cast<std::size_t>(p)]);
      bucket_of[static_cast<std::size_t>(p)] = k;
    }
    OURO_TRY(block(b.message));
    if (options.params_in_bucket) OURO_TRY(block(b.value));
    if (options.grads_in_bucket) OURO_TRY(block(b.grad));
    if (options.topology.vectors() == 2) OURO_TRY(block(b.second));
    auto optimizer = options.optimizer(b.params);
    OURO_TRY(optimizer.status());
    if (*optimizer == nullptr) return invalid("the optimiser's factory made none");
    b.optimizer = std::move(*optimizer);
    if (options.schedule) {
      auto schedule = options.schedule(b.params);
      OURO_TRY(schedule.status());
      b.schedule = std::move(*schedule);
    }
    for (std::size_t i = 0; i < b.params.size(); ++i) {
      Param& p = b.params[i];
      const auto move = [&](View& view, const Block& to) -> Status {
        if (!to) return {};
        const View there = to.view(b.layout.offsets[i], view.count);
        OURO_TRY(copy_view(there, view));
        view = there;
        return {};
      };
      OURO_TRY(events[static_cast<std::size_t>(b.layout.params[i])].synchronize());
      OURO_TRY(move(p.value, b.value));
      OURO_TRY(move(p.grad, b.grad));
      if (b.second) OURO_TRY(copy_view(b.second.view(b.layout.offsets[i], p.value.count), p.value));
    }
    for (const int p : b.layout.params) b.unready += ready[static_cast<std::size_t>(p)] ? 0 : 1;
  }
  for (const GossipBucket& b : made)
    for (std::size_t i = 0; i < b.params.size(); ++i)
      params[static_cast<std::size_t>(b.layout.params[i])] = b.params[i];
  pool = std::move(*streams);
  layouts = std::move(*plan);
  buckets = std::move(made);
  return {};
}

}  // namespace ouro::train
