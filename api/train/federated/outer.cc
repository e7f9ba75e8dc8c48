// The outer step: difference, optimiser step, copy back. See ouro/train/outer.hpp.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <span>

#include "api/train/common/param_checks.h"
#include "api/train/federated/outer_state.h"
#include "kernels/device/gpu.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

constexpr const char* kOuterCall = "outer step";

bool on_gpu(const View& v) { return v.device.kind != Device::Kind::host; }
Result<Array> like(const View& v, Device device) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(v.count)};
  return Array::make(shape, v.dtype, device);
}

}  // namespace

Status copy(const View& to, const CView& from, const Stream& stream) {
  if (from.bytes() == 0) return {};
  const bool device = on_gpu(to) || from.device.kind != Device::Kind::host;
  if (device) {
    const gpu::Stream raw{stream.device().index, stream.cuda_handle()};
    return gpu::gpu().copy(to.data, from.data, from.bytes(), raw);
  }
  const auto move = [to, from] {
    std::memcpy(to.data, from.data, from.bytes());
    return Status{};
  };
  if (!stream.valid()) return move();
  (void)stream.run(move);
  return {};
}

const Stream& OuterOptimizer::State::beside(const Stream& stream) const {
  static const Stream caller;
  return options.on_host && !items.empty() && on_gpu(items[0].param.value) ? caller : at(stream);
}

Status OuterOptimizer::State::difference(const Stream& stream) {
  const Stream& s = at(stream);
  const Stream& here = beside(stream);
  if (!items.empty() && s.valid() && on_gpu(items[0].param.value) &&
      s.device() != items[0].param.value.device)
    return invalid(fmt::format("{}: parameters on GPU {} and a stream of another device", kOuterCall,
                               items[0].param.value.device.index));
  for (Item& i : items) OURO_TRY(copy(i.delta.view(), i.param.value, s));
  if (&here != &s) OURO_TRY(s.synchronize());
  for (Item& i : items) {
    const View g = i.delta.view();  // g <- x_o - g, and the message is g itself
    OURO_TRY(mix_and_pack(g, std::nullopt, Row{.self = -1}, i.before.view(), 1, g, here));
  }
  return {};
}

Status OuterOptimizer::State::apply(const Stream& stream) {
  const Stream& s = at(stream);
  const Stream& here = beside(stream);
  std::vector<Param> params;
  for (const Item& i : items) {
    params.push_back(i.param);
    params.back().value = i.before.view();
    params.back().grad = i.delta.view();
  }
  StepOptions step;
  if (options.schedule) step.lr = options.schedule->lr();
  if (options.clip_norm > 0) {
    double squares = 0;  // one by one: a survey's list has one type, but parameters' types may differ
    for (const Param& p : params) {
      const CView g = p.grad;
      OURO_ASSIGN(auto survey, survey_gradients({&g, 1}, 1, here));
      squares += survey.norm * survey.norm;
    }
    step.scale.clip =
        GradientSurvey{std::isfinite(squares), std::sqrt(squares)}.clip_factor(options.clip_norm);
  }
  OURO_TRY(optimizer->step(params, step, here));
  for (Item& i : items) OURO_TRY(copy(i.param.value, i.before.view(), s));
  if (&here != &s) OURO_TRY(s.synchronize());
  if (options.schedule) options.schedule->step();
  ++steps;
  return settle(stream);
}

Result<OuterOptimizer> OuterOptimizer::create(std::span<const Param> params,
                                              std::unique_ptr<Optimizer> optimizer, OuterOptions options) {
  if (!optimizer) return invalid(fmt::format("{}: no optimiser", kOuterCall));
  if (!(options.clip_norm >= 0) || !std::isfinite(options.clip_norm))
    return invalid(
        fmt::format("{}: clip_norm {}; expected a finite number, 0 at least", kOuterCall, options.clip_norm));
  OURO_TRY(check_tensors(kOuterCall, params));
  OURO_TRY(check_names(kOuterCall, params));
  auto state = std::make_shared<State>();
  state->optimizer = std::move(optimizer);
  state->options = std::move(options);
  if (!params.empty() && on_gpu(params[0].value)) {
    OURO_ASSIGN(state->own, Stream::create(params[0].value.device));
  }
  for (const Param& p : params) {
    const Device device = state->options.on_host ? Device{} : p.value.device;
    State::Item item{.param = p, .before = {}, .delta = {}};
    for (Array* a : {&item.before, &item.delta}) {
      OURO_ASSIGN(*a, like(p.value, device));
    }
    OURO_TRY(copy(item.before.view(), p.value, state->own));
    state->items.push_back(std::move(item));
  }
  OURO_TRY(state->own.synchronize());
  return OuterOptimizer(std::move(state));
}

Status OuterOptimizer::step(const Stream& stream) {
  const StandardFloats floats;
  OURO_TRY(state_->difference(stream));
  const Status applied = state_->apply(stream);
  // Enqueued host work uses memory of the state; devices keep theirs alive themselves.
  if (stream.valid() && stream.device().kind == Device::Kind::host)
    (void)stream.run([keep = state_] { return Status{}; });
  return applied;
}
std::int64_t OuterOptimizer::steps() const { return state_->steps; }
Optimizer& OuterOptimizer::optimizer() { return *state_->optimizer; }

Status outer_step_from_models(std::span<const Param> base, std::span<const std::span<const Param>> models,
                              Optimizer* optimizer) {
  constexpr const char* kFrom = "outer step from models";
  if (models.empty()) return invalid(fmt::format("{}: no models", kFrom));
  OURO_TRY(check_tensors(kFrom, base));
  for (std::size_t m = 0; m < models.size(); ++m) {
    if (models[m].size() != base.size())
      return invalid(fmt::format("{}: model {} has {} parameters, the base {}", kFrom, m, models[m].size(),
                                 base.size()));
    for (std::size_t k = 0; k < base.size(); ++k) {
      const Param &a = base[k], &b = models[m][k];
      const Device host;
      if (a.name != b.name || a.value.dtype != b.value.dtype || a.value.count != b.value.count ||
          a.value.device != host || b.value.device != host || (b.value.data == nullptr && b.value.count > 0))
        return invalid(
            fmt::format("{}: parameter {} of model {} is '{}', {} elements of type {}; expected '{}', {} of "
                        "type {}, all on the host",
                        kFrom, k, m, b.name, b.value.count, name(b.value.dtype), a.name, a.value.count,
                        name(a.value.dtype)));
    }
  }
  std::unique_ptr<Optimizer> own;
  if (optimizer == nullptr) {
    OURO_ASSIGN(own, make_optimizer(
                         AdamOptions{.lr = 0.1, .beta1 = .9, .beta2 = .99, .eps = 1e-8, .decoupled = true}));
    optimizer = own.get();
  }
  std::vector<Param> params(base.begin(), base.end());
  std::vector<Array> deltas;
  double squares = 0;
  for (std::size_t k = 0; k < params.size(); ++k) {
    OURO_ASSIGN(auto delta, like(params[k].value, {}));
    const View& x = params[k].value;
    with_float_type(x.dtype, [&]<class T>(T) {
      const T* from = static_cast<const T*>(x.data);
      T* to = static_cast<T*>(delta.view().data);
      for (std::size_t i = 0; i < x.count; ++i) {
        auto sum = load_wide(from[i]) * 0;
        for (const auto& model : models)
          sum += load_wide(from[i]) - load_wide(static_cast<const T*>(model[k].value.data)[i]);
        to[i] = store_wide<T>(sum / static_cast<decltype(sum)>(models.size()));
      }
    });
    params[k].grad = delta.view();
    const CView g = params[k].grad;
    OURO_ASSIGN(auto survey, survey_gradients({&g, 1}));
    squares += survey.norm * survey.norm;
    deltas.push_back(std::move(delta));
  }
  const GradientSurvey all{std::isfinite(squares), std::sqrt(squares)};
  return optimizer->step(params, {.lr = {}, .scale = {.clip = all.clip_factor(1)}, .exchange = nullptr});
}

}  // namespace ouro::train
