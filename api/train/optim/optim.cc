// Optimiser steps on views: checks, and the calls of the host's loops or of a device's kernel. See optim.hpp.
#include "ouro/train/optim.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "api/train/optim/update.h"

namespace ouro::train {
namespace {

arith::SgdOptions arith_of(const SgdOptions& o) {
  return {o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov};
}
template <class Options>
arith::AdamOptions adam_of(const Options& o) {
  return {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.decoupled};
}
arith::GradientScale scale_of(const GradientScale& s) { return {s.inverse, s.clip}; }

/// The update of a run, without family and states.
Result<Update> update_of(const View& p, const CView& g, const std::optional<View>& master,
                         const GradientScale& scale) {
  OURO_TRY(check_run(p, g, master));
  Update u;
  u.device = p.device;
  u.run = {p.dtype, p.data, g.data, master ? static_cast<float*>(master->data) : nullptr, p.count};
  u.scale = scale_of(scale);
  return u;
}

Status add_state(Update& u, int k, const char* what, const View& v) {
  OURO_TRY(check_like(what, v, u.run.count, wide(u.run.dtype), u.device));
  u.state[k] = v.data;
  return {};
}

double rate_of(const Update& u) { return u.family == gpu::Family::sgd ? u.recipe.sgd.lr : u.recipe.adam.lr; }

/// Executes a complete update, with its step count in a view.
Status perform(const Update& u, const View& step, const Stream& stream) {
  OURO_TRY(check_like("step", step, 1, DType::i64, u.device));
  if (u.device.kind == Device::Kind::host) {
    if (reinterpret_cast<std::uintptr_t>(step.data) % alignof(std::int64_t) != 0)
      return invalid("step must be aligned to 8 bytes");
    // The loops check options first and access arrays only if there are elements.
    Update nothing = u;
    nothing.run.count = 0;
    std::int64_t none = 0;
    OURO_TRY(update_host(nothing, &none));
    return on_host(stream, [u, at = static_cast<std::int64_t*>(step.data)] { return update_host(u, at); });
  }
  OURO_TRY(check_device(u));
  OURO_ASSIGN(auto control, control_of(u.device.index, step.data));
  return on_device(u.device, stream, [u, step, c = control](gpu::Stream s) {
    OURO_TRY(gpu::gpu().copy(&c->step, step.data, sizeof c->step, s));
    OURO_TRY(write_rate(c, rate_of(u), s));
    OURO_TRY(update_device(u, c, s));
    return gpu::gpu().copy(step.data, &c->step, sizeof c->step, s);
  });
}

/// The additional arguments of the mixing forms of an update.
struct Mixing {
  const Row& row;
  const CView& neighbours;
  double adaptive;
  const View& next_message;
};
Status add_mixing(Update& u, const View& p, const Mixing* m) {
  if (m == nullptr) return {};
  OURO_ASSIGN(auto exchange, exchange_of(p, m->row, m->neighbours, m->adaptive, m->next_message));
  u.mixes = true;
  u.exchange = exchange;
  return {};
}

Status run_sgd(const View& p, const CView& g, SgdState& s, const SgdOptions& o, const Mixing* mixing,
               const Stream& stream) {
  OURO_ASSIGN(auto u, update_of(p, g, s.master, o.scale));
  u.family = gpu::Family::sgd;
  u.recipe.sgd = arith_of(o);
  if (o.momentum != 0) OURO_TRY(add_state(u, 0, "momentum", s.momentum));
  OURO_TRY(add_mixing(u, p, mixing));
  return perform(u, s.step, stream);
}

Status run_adam(const View& p, const CView& g, AdamState& s, const AdamOptions& o, const Mixing* mixing,
                const Stream& stream) {
  OURO_ASSIGN(auto u, update_of(p, g, s.master, o.scale));
  u.recipe.adam = adam_of(o);
  OURO_TRY(add_state(u, 0, "exp_avg", s.exp_avg));
  OURO_TRY(add_state(u, 1, "exp_avg_sq", s.exp_avg_sq));
  OURO_TRY(add_mixing(u, p, mixing));
  return perform(u, s.step, stream);
}

Status run_accum(const View& p, const CView& g, AccumAdamState& s, const AccumAdamOptions& o,
                 const Mixing* mixing, const Stream& stream) {
  OURO_ASSIGN(auto u, update_of(p, g, s.master, o.scale));
  u.family = gpu::Family::accum_adam;
  u.recipe.adam = adam_of(o);
  u.recipe.accum_iter = o.accum_iter;
  u.lazy_zero = o.lazy_zero;
  OURO_TRY(add_state(u, 0, "exp_avg", s.exp_avg));
  OURO_TRY(add_state(u, 1, "exp_avg_sq", s.exp_avg_sq));
  OURO_TRY(add_state(u, 2, "accum_grad", s.accum_grad));
  OURO_TRY(add_mixing(u, p, mixing));
  return perform(u, s.step, stream);
}

AdamOptions decoupled(AdamOptions o) {
  o.decoupled = true;
  return o;
}

}  // namespace

Status sgd(View p, CView g, SgdState& s, const SgdOptions& o, const Stream& stream) {
  return run_sgd(p, g, s, o, nullptr, stream);
}
Status mix_sgd(View p, CView g, const Row& row, CView neighbours, double adaptive, View next_message,
               SgdState& s, const SgdOptions& o, const Stream& stream) {
  const Mixing mixing{row, neighbours, adaptive, next_message};
  return run_sgd(p, g, s, o, &mixing, stream);
}
Status adam(View p, CView g, AdamState& s, const AdamOptions& o, const Stream& stream) {
  return run_adam(p, g, s, o, nullptr, stream);
}
Status mix_adam(View p, CView g, const Row& row, CView neighbours, double adaptive, View next_message,
                AdamState& s, const AdamOptions& o, const Stream& stream) {
  const Mixing mixing{row, neighbours, adaptive, next_message};
  return run_adam(p, g, s, o, &mixing, stream);
}
Status adamw(View p, CView g, AdamState& s, const AdamOptions& o, const Stream& stream) {
  return run_adam(p, g, s, decoupled(o), nullptr, stream);
}
Status mix_adamw(View p, CView g, const Row& row, CView neighbours, double adaptive, View next_message,
                 AdamState& s, const AdamOptions& o, const Stream& stream) {
  return mix_adam(p, g, row, neighbours, adaptive, next_message, s, decoupled(o), stream);
}
Status accum_adam(View p, CView g, AccumAdamState& s, const AccumAdamOptions& o, const Stream& stream) {
  return run_accum(p, g, s, o, nullptr, stream);
}
Status mix_accum_adam(View p, CView g, const Row& row, CView neighbours, double adaptive, View next_message,
                      AccumAdamState& s, const AccumAdamOptions& o, const Stream& stream) {
  const Mixing mixing{row, neighbours, adaptive, next_message};
  return run_accum(p, g, s, o, &mixing, stream);
}

Status sgd(View p, CView g, View momentum, const SgdOptions& o, const Stream& stream) {
  if (o.dampening != 0)
    return invalid("a first step is not damped: dampening needs the form with SgdState, which counts steps");
  auto u = update_of(p, g, {}, o.scale);
  OURO_TRY(u.status());
  u->family = gpu::Family::sgd;
  u->recipe.sgd = arith_of(o);
  if (o.momentum != 0) OURO_TRY(add_state(*u, 0, "momentum", momentum));
  if (u->device.kind == Device::Kind::host) {
    Update nothing = *u;
    nothing.run.count = 0;
    std::int64_t later = 1;  // every step but the first reads the momentum
    OURO_TRY(update_host(nothing, &later));
    return on_host(stream, [u = *u] {
      std::int64_t step = 1;
      return update_host(u, &step);
    });
  }
  OURO_TRY(check_device(*u));
  OURO_ASSIGN(auto control, control_of(u->device.index, p.data));
  return on_device(u->device, stream, [u = *u, c = control](gpu::Stream s) {
    // Resets the low word of the count, which the previous launch left at 2.
    const gpu::MemOp later{gpu::MemOp::Kind::write, 1, &c->step};
    OURO_TRY(gpu::gpu().enqueue({&later, 1}, s));
    OURO_TRY(write_rate(c, rate_of(u), s));
    return update_device(u, c, s);
  });
}

Status mix_and_pack(View p, std::optional<View> master, const Row& row, CView neighbours, double adaptive,
                    View next_message, const Stream& stream) {
  auto u = update_of(p, p, master, {});  // no gradient is read
  OURO_TRY(u.status());
  u->family = gpu::Family::sgd;
  const Mixing mixing{row, neighbours, adaptive, next_message};
  OURO_TRY(add_mixing(*u, p, &mixing));
  if (u->device.kind == Device::Kind::host) return on_host(stream, [u = *u] { return mix_host(u); });
  OURO_TRY(check_device(*u));
  OURO_ASSIGN(auto control, control_of(u->device.index, p.data));
  return on_device(u->device, stream, [u = *u, c = control](gpu::Stream s) { return mix_device(u, c, s); });
}

double GradientSurvey::clip_factor(double limit) const { return arith::clip_factor(norm, limit); }

Result<GradientSurvey> survey_gradients(std::span<const CView> gradients, double inverse,
                                        const Stream& stream) {
  if (gradients.empty()) return GradientSurvey{};
  for (const CView& g : gradients)
    OURO_TRY(check_like("a gradient", g, g.count, gradients[0].dtype, gradients[0].device));
  kernels::Survey found;
  const std::vector<CView> list(gradients.begin(), gradients.end());
  const auto survey_once = [&found, list, inverse](gpu::Stream s) {
    auto result = list[0].device.kind == Device::Kind::host ? survey_host(list, inverse)
                                                            : survey_device(list, inverse, s);
    if (result.ok()) found = *result;
    return result.status();
  };
  Status done;
  if (list[0].device.kind == Device::Kind::cuda && stream.valid() && stream.device() == list[0].device) {
    done = on_device(list[0].device, stream, survey_once);
  } else if (list[0].device.kind == Device::Kind::cuda) {
    if (stream.valid()) OURO_TRY(stream.synchronize());
    done = on_device(list[0].device, {}, survey_once);
  } else {
    const Work work = stream.run([&survey_once] { return survey_once({}); });
    done = work.wait();
  }
  OURO_TRY(done);
  return GradientSurvey{found.finite, std::sqrt(found.squares)};
}

}  // namespace ouro::train
