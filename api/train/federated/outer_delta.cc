// Local steps with an occasional outer step, and the formats in which sites exchange its delta.
// See ouro/train/outer.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "api/train/federated/outer_state.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

constexpr const char* kDeltaCall = "local steps";
constexpr std::size_t kBlock = 256;  // elements per scale

std::size_t blocks(std::size_t count) { return (count + kBlock - 1) / kBlock; }
/// Packed size of one array: its scales, then its numbers.
std::size_t packed_bytes(std::size_t count) { return blocks(count) * sizeof(float) + count; }

template <class T>
void pack(const T* g, std::size_t count, std::byte* to) {
  std::byte* numbers = to + blocks(count) * sizeof(float);
  for (std::size_t b = 0; b < blocks(count); ++b) {
    const std::size_t first = b * kBlock, last = std::min(count, first + kBlock);
    double most = 0;
    bool finite = true;
    for (std::size_t i = first; i < last; ++i) {
      const auto x = static_cast<double>(load_wide(g[i]));
      finite = finite && std::isfinite(x);
      most = std::max(most, std::abs(x));
    }
    // Non-finite blocks remain non-finite, and the optimiser then does not change them.
    const float scale = finite ? static_cast<float>(most / 127) : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(to + b * sizeof(float), &scale, sizeof scale);
    const double inverse = finite && scale > 0 ? 1 / static_cast<double>(scale) : 0;
    for (std::size_t i = first; i < last; ++i) {
      const double x = finite ? static_cast<double>(load_wide(g[i])) * inverse : 0;
      const auto q = static_cast<std::int8_t>(std::lrint(std::clamp(x, -127.0, 127.0)));
      numbers[i] = std::bit_cast<std::byte>(q);
    }
  }
}

/// g = sum over sites of weight * the site's packed values; the sites' arrays begin `stride` bytes apart.
template <class T>
void unpack(T* g, std::size_t count, const std::byte* from, std::size_t stride,
            std::span<const double> weights) {
  for (std::size_t b = 0; b < blocks(count); ++b)
    for (std::size_t i = b * kBlock; i < std::min(count, (b + 1) * kBlock); ++i) {
      double sum = 0;
      for (std::size_t f = 0; f < weights.size(); ++f) {
        if (weights[f] == 0) continue;  // ignored, whatever the site sent
        const std::byte* at = from + f * stride;
        float scale;
        std::memcpy(&scale, at + b * sizeof(float), sizeof scale);
        const auto q = std::bit_cast<std::int8_t>(at[blocks(count) * sizeof(float) + i]);
        sum += weights[f] * static_cast<double>(scale) * q;
      }
      using C = decltype(load_wide(T{}));
      g[i] = store_wide<T>(static_cast<C>(sum));
    }
}

}  // namespace

Status LocalSteps::State::exchange_rounded(const Stream& s) {
  OuterOptimizer::State& o = *outer->state_;
  for (std::size_t k = 0; k < rounded.size(); ++k) {
    const View from = o.items[k].delta.view(), to = rounded[k].view();
    with_float_type(from.dtype, [&]<class T>(T) {
      for (std::size_t i = 0; i < from.count; ++i)
        static_cast<arith::BFloat16*>(to.data)[i] = arith::narrow<arith::BFloat16>(
            static_cast<float>(load_wide(static_cast<const T*>(from.data)[i])));
    });
  }
  OURO_TRY(plan->run(s));
  if (s.valid()) OURO_TRY(s.synchronize());
  for (std::size_t k = 0; k < rounded.size(); ++k) {
    const View to = o.items[k].delta.view(), from = rounded[k].view();
    with_float_type(to.dtype, [&]<class T>(T) {
      for (std::size_t i = 0; i < to.count; ++i)
        static_cast<T*>(to.data)[i] = store_wide<T>(
            static_cast<decltype(load_wide(T{}))>(arith::widen(static_cast<arith::BFloat16*>(from.data)[i])));
    });
  }
  return {};
}

Status LocalSteps::State::exchange_packed() {
  OuterOptimizer::State& o = *outer->state_;
  const std::size_t stride = packed.size();
  std::size_t at = 0;
  for (const auto& i : o.items) {
    const View g = i.delta.view();
    with_float_type(g.dtype, [&]<class T>(T) { pack(static_cast<const T*>(g.data), g.count, &packed[at]); });
    at += packed_bytes(g.count);
  }
  const View all(gathered.data(), gathered.size(), DType::u8);
  if (lane.across.valid()) {
    const Status s = all_gather(lane.across, CView(packed.data(), packed.size(), DType::u8), all);
    if (!s.ok() && lane.inside.valid()) lane.inside.abort("the gather across sites failed: " + s.message());
    OURO_TRY(s);
  } else {
    std::copy(packed.begin(), packed.end(), gathered.begin());  // one site, or not a sender
  }
  if (lane.inside.valid()) OURO_TRY(broadcast(lane.inside, all, all, lane.root));
  at = 0;
  for (const auto& i : o.items) {
    const View g = i.delta.view();
    with_float_type(g.dtype, [&]<class T>(T) {
      unpack(static_cast<T*>(g.data), g.count, &gathered[at], stride, weights);
    });
    at += packed_bytes(g.count);
  }
  return {};
}

Status LocalSteps::State::round(const Stream& stream) {
  OuterOptimizer::State& o = *outer->state_;
  if (options.delta == DeltaFormat::exact) {
    OURO_TRY(plan->run(stream));
    // A failed mean must not become a step, but a GPU stream continues after a failure.
    if (stream.valid()) OURO_TRY(stream.synchronize());
    OURO_TRY(plan->wait());
    OURO_TRY(outer->step(stream));
    return stream.valid() ? stream.synchronize() : Status{};
  }
  OURO_TRY(plan->compare());
  OURO_TRY(o.difference(stream));
  if (stream.valid()) OURO_TRY(stream.synchronize());
  OURO_TRY(options.delta == DeltaFormat::bf16 ? exchange_rounded(stream) : exchange_packed());
  OURO_TRY(o.apply(stream));
  return stream.valid() ? stream.synchronize() : Status{};
}

Result<LocalSteps> LocalSteps::create(const LayoutGroups& groups, std::span<const Param> params,
                                      std::unique_ptr<Optimizer> optimizer, LocalStepsOptions options) {
  if (options.inner_steps < 1)
    return invalid(fmt::format("{}: {} inner steps; expected 1 at least", kDeltaCall, options.inner_steps));
  std::vector<Param> selected;
  for (const Param& p : params)
    if (!options.aggregate.filter || options.aggregate.filter(p)) selected.push_back(p);
  options.aggregate.filter = {};
  const bool compresses = options.delta != DeltaFormat::exact;
  if (compresses && !selected.empty() && selected[0].value.device.kind != Device::Kind::host)
    return unsupported(
        fmt::format("{}: deltas are made smaller on the host; parameters are on a GPU", kDeltaCall));
  if (options.delta == DeltaFormat::int8 && options.aggregate.streams != 1)
    return unsupported(fmt::format("{}: int8 deltas travel in one piece; {} streams, expected 1", kDeltaCall,
                                   options.aggregate.streams));
  auto plan = plan_aggregation(groups, selected, options.aggregate);
  OURO_TRY(plan.status());
  OURO_ASSIGN(auto outer, OuterOptimizer::create(selected, std::move(optimizer), options.outer));

  auto state = std::make_shared<State>();
  if (options.delta == DeltaFormat::bf16) {
    std::vector<Param> shadows = selected;
    for (Param& p : shadows) {
      const std::int64_t shape[] = {static_cast<std::int64_t>(p.value.count)};
      OURO_ASSIGN(auto made, Array::make(shape, DType::bf16));
      p.value = made.view();
      state->rounded.push_back(std::move(made));
    }
    plan = plan_aggregation(groups, shadows, options.aggregate);
    OURO_TRY(plan.status());
  }
  if (options.delta == DeltaFormat::int8) {
    const ParallelLayout& l = groups.layout;
    state->lane = lane_of(groups, 0);
    const std::size_t sites = l.federation ? static_cast<std::size_t>(l.federation->count)
                                           : std::max<std::size_t>(1, l.replica_group.size());
    state->weights = options.aggregate.site_weights;
    if (state->weights.empty()) state->weights.assign(sites, 1);
    double sum = 0;
    for (const double w : state->weights) sum += w;
    for (double& w : state->weights) w /= sum;
    std::size_t bytes = 0;
    for (const Param& p : selected) bytes += packed_bytes(p.value.count);
    try {
      state->packed.resize(bytes);
      state->gathered.resize(bytes * sites);
    } catch (const std::exception&) {
      return Status(Reason::resource,
                    fmt::format("{}: no memory for {} deltas of {} bytes", kDeltaCall, sites, bytes));
    }
  }
  Digest rule;
  rule.add(options.inner_steps);
  rule.add(options.delta);
  rule.add(options.outer.clip_norm);
  rule.add(options.outer.schedule.has_value());
  if (options.outer.schedule) rule.add(options.outer.schedule->lr());
  rule.add(outer.optimizer().digest());
  state->rule = rule.value();
  state->options = std::move(options);
  state->plan = std::move(*plan);
  state->outer = std::move(outer);
  state->tensors = state->plan->state_->claims;
  state->claim();
  return LocalSteps(std::move(state));
}

void LocalSteps::State::claim() {
  AggregationPlan::State& p = *plan->state_;
  std::lock_guard lock(p.verdict_mutex);
  Digest all;
  for (const std::uint64_t word : {tensors.back().value, rule}) all.add(word);
  all.add(outer->steps());
  p.claims = tensors;
  p.claims.back().value = all.value();
  p.verdict.reset();
}

Result<bool> LocalSteps::step(const Stream& stream) {
  if (++state_->taken % state_->options.inner_steps != 0) return false;
  const StandardFloats floats;
  OURO_TRY(state_->round(stream));
  return true;
}
std::int64_t LocalSteps::rounds() const { return state_->outer->steps(); }
AggregateTraffic LocalSteps::traffic() const {
  if (state_->options.delta != DeltaFormat::int8) return state_->plan->traffic();
  AggregateTraffic t;
  if (state_->lane.across.valid()) t.across = state_->packed.size();
  if (state_->lane.inside.valid()) t.inside = state_->gathered.size();
  return t;
}

}  // namespace ouro::train
