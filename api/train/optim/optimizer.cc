// Optimisers that own their state: the state is created on first use, on the parameter's device, and saved
// and restored bit for bit. Also the factories. See optim.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "api/train/common/comparison.h"
#include "api/train/common/param_checks.h"
#include "api/train/optim/step_launches.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

using StateMap = OptimizerState::Map;

/// One rule for all parameters; only their decay differs.
class RuleOptimizer final : public Optimizer {
 public:
  RuleOptimizer(gpu::Family family, const arith::Recipe& recipe, const GradientScale& scale,
                const OptimizerOptions& options)
      : options_(options), scale_(scale) {
    prototype_.family = family;
    prototype_.recipe = recipe;
    lr_ = family == gpu::Family::sgd ? recipe.sgd.lr : recipe.adam.lr;
    arrays_ = family == gpu::Family::sgd    ? (recipe.sgd.momentum != 0 ? 1 : 0)
              : family == gpu::Family::adam ? 2
                                            : 3;
    Digest d;
    const arith::Recipe& r = recipe;
    for (const double x :
         {r.sgd.lr, r.sgd.momentum, r.sgd.dampening, r.sgd.weight_decay, r.adam.lr, r.adam.beta1,
          r.adam.beta2, r.adam.eps, r.adam.weight_decay, scale.inverse, scale.clip})
      d.add(x);
    d.add(family);
    d.add(r.accum_iter);
    for (const bool b : {r.sgd.nesterov, r.adam.decoupled, options.master}) d.add(b);
    d.add(options.decay_rule ? 1 + static_cast<int>(*options.decay_rule) : 0);
    digest_ = d.value();
  }
  ~RuleOptimizer() override {
    // Host queues keep the state alive themselves; a device must have finished with it before it is freed.
    // Failures there are left for the user's own synchronize().
    for (const Used& u : used_) {
      if (u.stream.device().kind == Device::Kind::host) continue;
      Event mark;
      mark.record(u.stream);
      (void)mark.synchronize().ok();
    }
  }

  Status step(std::span<const Param>, const StepOptions&, const Stream&) override;
  double lr() const override { return lr_; }
  Status adopt_options(const Optimizer& other) override;
  std::uint64_t digest() const override { return digest_; }
  Result<Bytes> save() override;
  Status load(CBytes) override;

 private:
  Result<StepItem> item_of(const Param&, std::size_t index, const StepOptions&, const Stream&);
  Result<std::shared_ptr<OptimizerState>> state_of(const Param&, const Stream&);
  OptimizerState::Kind kind() const {
    return {static_cast<std::uint32_t>(prototype_.family),
            static_cast<std::uint32_t>(prototype_.recipe.accum_iter), static_cast<std::uint32_t>(arrays_)};
  }
  /// Waits for the streams on which steps were enqueued since the last call, and for those that captured
  /// steps, because graphs may have been replayed there.
  Status settle();

  OptimizerOptions options_;
  GradientScale scale_;
  Update prototype_;
  int arrays_ = 0;
  double lr_ = 0;
  std::uint64_t digest_ = 0;  // of the rule and the options it was made with
  StateMap states_;
  StepLaunches launches_;  // on devices
  struct Used {
    Stream stream;
    bool captured;
  };
  std::vector<Used> used_;
};

Status RuleOptimizer::settle() {
  Status first;
  for (const Used& u : used_)
    if (Status one = u.stream.synchronize(); first.ok()) first = one;
  std::erase_if(used_, [](const Used& u) { return !u.captured; });
  return first;
}

Result<std::shared_ptr<OptimizerState>> RuleOptimizer::state_of(const Param& p, const Stream& stream) {
  auto slot = states_.contains(p.name) ? states_.at(p.name) : nullptr;
  if (!slot) {
    const bool master = options_.master && size_of(p.value.dtype) == 2;
    OURO_ASSIGN(auto made, OptimizerState::make(p.value, arrays_, master));
    if (master) {
      OURO_TRY(stream.synchronize());  // waits for work that may still write the parameter
      OURO_TRY(made->start_master(p.value));
    }
    states_[p.name] = slot = std::move(made);
  }
  if (slot->count != p.value.count || slot->dtype != p.value.dtype)
    return invalid(fmt::format("parameter {} has {} elements of type {}, its state {} of type {}", p.name,
                               p.value.count, name(p.value.dtype), slot->count, name(slot->dtype)));
  if (slot->device != p.value.device) {
    OURO_TRY(settle());
    OURO_TRY(slot->move_to(p.value.device));
  }
  return slot;
}

Result<StepItem> RuleOptimizer::item_of(const Param& p, std::size_t index, const StepOptions& o,
                                        const Stream& stream) {
  StepItem item{.update = prototype_, .state = nullptr, .updates = p.grad.data != nullptr};
  Update& u = item.update;
  const CView g = item.updates ? CView(p.grad) : CView(p.value);
  OURO_TRY(check_run(p.value, g, {}));
  u.device = p.value.device;
  u.run = {p.value.dtype, p.value.data, g.data, nullptr, p.value.count};
  if (item.updates || states_.contains(p.name)) {
    OURO_ASSIGN(auto state, state_of(p, stream));
    if (state->master) u.run.master = reinterpret_cast<float*>(state->array(arrays_));
    for (int k = 0; k < arrays_; ++k) u.state[k] = state->array(k);
    item.state = state;
  }
  if (!item.updates) {  // a rule without options and state
    u.family = gpu::Family::sgd;
    u.recipe = {};
  }
  const bool decays_here = !options_.decay_rule || decays(p.name, *options_.decay_rule);
  u.recipe.sgd.lr = u.recipe.adam.lr = lr_;
  if (!decays_here) u.recipe.sgd.weight_decay = u.recipe.adam.weight_decay = 0;
  u.scale = {scale_.inverse * o.scale.inverse, scale_.clip * o.scale.clip};
  if (o.exchange != nullptr) {
    if (o.exchange->row == nullptr) return invalid("an exchange needs a row of a mixing matrix");
    OURO_ASSIGN(auto exchange, exchange_of(p.value, *o.exchange->row, o.exchange->neighbours[index],
                                           o.exchange->adaptive, o.exchange->next_messages[index]));
    u.mixes = true;
    u.exchange = exchange;
  }
  return item;
}

Status RuleOptimizer::step(std::span<const Param> params, const StepOptions& o, const Stream& stream) {
  const StandardFloats floats;
  if (o.lr && !std::isfinite(*o.lr)) return invalid(fmt::format("learning rate {}", *o.lr));
  if (o.exchange != nullptr &&
      (o.exchange->neighbours.size() != params.size() || o.exchange->next_messages.size() != params.size()))
    return invalid(fmt::format("{} parameters, {} sums of neighbours and {} messages", params.size(),
                               o.exchange->neighbours.size(), o.exchange->next_messages.size()));
  OURO_TRY(check_names("optimiser step", params));
  for (const Param& p : params)
    if (p.value.device != params[0].value.device)
      return invalid("the parameters of a step must be on one device");
  const double before = lr_;
  if (o.lr) lr_ = *o.lr;
  auto items = std::make_shared<std::vector<StepItem>>();
  std::vector<StepLaunch> launches;
  bool captured = false;
  std::vector<std::string> begun;  // parameters whose state this step creates
  const auto name_of = [&](const OptimizerState& s) {
    return std::find_if(states_.begin(), states_.end(),
                        [&](const auto& one) { return one.second.get() == &s; })
        ->first;
  };
  const auto prepare = [&]() -> Status {
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (params[i].grad.data == nullptr && o.exchange == nullptr) continue;
      if (!states_.contains(params[i].name)) begun.push_back(params[i].name);
      OURO_ASSIGN(auto item, item_of(params[i], i, o, stream));
      items->push_back(std::move(item));
    }
    if (items->empty() || params[0].value.device.kind == Device::Kind::host) return {};
    OURO_TRY(check_stream(params[0].value.device, stream));
    for (const StepItem& i : *items) OURO_TRY(check_device(i.update));
    if (stream.valid() && stream.device() == params[0].value.device) {
      OURO_ASSIGN(auto capture, gpu::gpu().capturing({stream.device().index, stream.cuda_handle()}));
      captured = capture != 0;
    }
    OURO_TRY(make_ready(params[0].value.device));
    OURO_ASSIGN(launches, launches_.of(*items, stream, captured, name_of));
    return {};
  };
  if (Status refused = prepare(); !refused.ok()) {
    lr_ = before;
    for (const std::string& name : begun) {
      if (states_.contains(name)) states_.at(name)->leave();
      states_.erase(name);
    }
    return refused;
  }
  if (items->empty()) return {};
  if (stream.valid()) {
    auto at = std::find_if(used_.begin(), used_.end(), [&](const Used& u) { return u.stream == stream; });
    if (at == used_.end()) at = used_.insert(at, {stream, false});
    at->captured |= captured;
  }
  if (params[0].value.device.kind == Device::Kind::host)
    return on_host(stream, [items] {
      for (const StepItem& i : *items)
        OURO_TRY(i.updates ? update_host(i.update, &i.state->host_step) : mix_host(i.update));
      return Status{};
    });
  return on_device(params[0].value.device, stream, [launches = std::move(launches), lr = lr_](gpu::Stream s) {
    for (const StepLaunch& l : launches) {
      TensorList::Staged late;
      if (!l.staged) {
        OURO_ASSIGN(late, l.cohort->stage(l.updates, false));
      }
      OURO_TRY(l.cohort->enqueue(l.updates, l.staged ? *l.staged : late, l.begin, lr, l.counts, s));
    }
    return Status{};
  });
}

Status RuleOptimizer::adopt_options(const Optimizer& other) {
  const auto* from = dynamic_cast<const RuleOptimizer*>(&other);
  if (from == nullptr || !(from->kind() == kind()) || from->options_.master != options_.master)
    return invalid(
        "the options of an optimiser with another state; expected the same rule, accum_iter and master, and "
        "some momentum where there was some, none where there was none");
  options_ = from->options_, scale_ = from->scale_;
  prototype_ = from->prototype_;
  lr_ = from->lr_, digest_ = from->digest_;
  return {};
}

Result<Bytes> RuleOptimizer::save() {
  OURO_TRY(settle());
  try {
    return write_states(kind(), lr_, states_);
  } catch (const std::bad_alloc&) {
    return Status(Reason::resource, "no memory to save the state of an optimiser");
  }
}

Status RuleOptimizer::load(CBytes bytes) {
  OURO_TRY(settle());
  StateMap read;
  double lr = 0;
  try {
    OURO_TRY(read_states(bytes, kind(), &lr, &read));
  } catch (const std::bad_alloc&) {
    return {Reason::resource, "no memory to load the state of an optimiser"};
  }
  for (const auto& [name, state] : states_) state->leave();
  states_ = std::move(read);
  used_.clear();  // captured graphs may no longer be replayed on these states
  lr_ = lr;
  return {};
}

Result<std::unique_ptr<Optimizer>> make(gpu::Family family, const arith::Recipe& recipe,
                                        const GradientScale& scale, const OptimizerOptions& o) {
  auto made = std::make_unique<RuleOptimizer>(family, recipe, scale, o);
  // The loops check the options before they check for elements.
  Update nothing;
  nothing.family = family;
  nothing.recipe = recipe;
  std::int64_t step = 0;
  OURO_TRY(update_host(nothing, &step));
  return std::unique_ptr<Optimizer>(std::move(made));
}

OptimizerFactory factory(const FactoryOptions& o, bool decoupled, bool accumulates) {
  return [=](std::span<const Param>) {
    const AccumAdamOptions options{.lr = o.lr,
                                   .beta1 = o.beta1,
                                   .beta2 = o.beta2,
                                   .eps = o.eps,
                                   .weight_decay = o.weight_decay.value_or(decoupled ? 0.1 : 1.0 / 32768),
                                   .accum_iter = o.accum_iter,
                                   .decoupled = decoupled};
    const OptimizerOptions rest{.decay_rule = o.decay_rule, .master = o.master};
    if (accumulates) return make_optimizer(options, rest);
    return make_optimizer(AdamOptions{.lr = options.lr,
                                      .beta1 = options.beta1,
                                      .beta2 = options.beta2,
                                      .eps = options.eps,
                                      .weight_decay = options.weight_decay,
                                      .decoupled = decoupled},
                          rest);
  };
}

}  // namespace

bool decays(std::string_view name, DecayRule rule) {
  const bool exempt = name.find("bn") != name.npos || name.find("bias") != name.npos;
  return exempt == (rule == DecayRule::upstream_inverted);
}
DecayGroups decay_groups(std::span<const std::string> names, DecayRule rule) {
  DecayGroups groups;
  for (std::size_t i = 0; i < names.size(); ++i)
    (decays(names[i], rule) ? groups.decay : groups.no_decay).push_back(i);
  return groups;
}

Result<std::unique_ptr<Optimizer>> make_optimizer(const SgdOptions& o, const OptimizerOptions& rest) {
  arith::Recipe recipe;
  recipe.sgd = {o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov};
  return make(gpu::Family::sgd, recipe, o.scale, rest);
}
Result<std::unique_ptr<Optimizer>> make_optimizer(const AdamOptions& o, const OptimizerOptions& rest) {
  arith::Recipe recipe;
  recipe.adam = {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.decoupled};
  return make(gpu::Family::adam, recipe, o.scale, rest);
}
Result<std::unique_ptr<Optimizer>> make_optimizer(const AccumAdamOptions& o, const OptimizerOptions& rest) {
  arith::Recipe recipe;
  recipe.adam = {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.decoupled};
  recipe.accum_iter = o.accum_iter;
  return make(gpu::Family::accum_adam, recipe, o.scale, rest);
}

OptimizerFactory optim_fn_adam(const FactoryOptions& o) { return factory(o, false, false); }
OptimizerFactory optim_fn_adamw(const FactoryOptions& o) { return factory(o, true, false); }
OptimizerFactory optim_fn_accum_adam(const FactoryOptions& o) { return factory(o, false, true); }
OptimizerFactory optim_fn_accum_adamw(const FactoryOptions& o) { return factory(o, true, true); }
OptimizerFactory optim_fn_sgd(const SgdOptions& o, const OptimizerOptions& rest) {
  return [=](std::span<const Param>) { return make_optimizer(o, rest); };
}

}  // namespace ouro::train
