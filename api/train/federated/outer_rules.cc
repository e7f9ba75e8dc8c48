// Server rules of federated training, on host memory. See ouro/train/outer.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "api/train/common/comparison.h"
#include "api/train/common/param_checks.h"
#include "api/train/federated/outer_state.h"
#include "api/train/optim/optimizer_state.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

/// First family number of saved server rules, after those of gpu::Family.
constexpr std::uint32_t kFirstFamily = 16;
constexpr int kArrays = 2;  // m and v

struct Rates {
  ServerRule rule;
  double lr, beta1, beta2, tau;
  double clip;  // factor for the gradient, including its scale
  bool first;
};

template <class T, class C>
void update(const Rates& r, T* x, const T* gradient, C* m, C* v, std::size_t count) {
  const C lr = static_cast<C>(r.lr), b1 = static_cast<C>(r.beta1), b2 = static_cast<C>(r.beta2),
          tau = static_cast<C>(r.tau), clip = static_cast<C>(r.clip);
  const C start = tau * tau;
  for (std::size_t i = 0; i < count; ++i) {
    const C g = load_wide(gradient[i]) * clip;
    if (!std::isfinite(g)) {
      if (r.first) v[i] = start;
      continue;
    }
    const C square = g * g, old = r.first ? start : v[i];
    m[i] = b1 * m[i] - (1 - b1) * g;
    v[i] = r.rule == ServerRule::adagrad ? old + square
           : r.rule == ServerRule::adam  ? b2 * old + (1 - b2) * square
           : old > square                ? old - (1 - b2) * square
           : old < square                ? old + (1 - b2) * square
                                         : old;
    x[i] = store_wide<T>(load_wide(x[i]) + lr * m[i] / (std::sqrt(v[i]) + tau));
  }
}

class ServerOptimizer final : public Optimizer {
 public:
  explicit ServerOptimizer(const ServerOptions& o) : options_(o) {
    Digest d;
    d.add(kind().family);
    for (const double x : {o.lr, o.beta1, o.beta2, o.tau}) d.add(x);
    digest_ = d.value();
  }

  Status step(std::span<const Param>, const StepOptions&, const Stream&) override;
  double lr() const override { return options_.lr; }
  std::uint64_t digest() const override { return digest_; }
  Result<Bytes> save() override {
    OURO_TRY(settle());
    try {
      return write_states(kind(), options_.lr, states_);
    } catch (const std::bad_alloc&) {
      return Status(Reason::resource, "no memory to save the state of a server rule");
    }
  }
  Status load(CBytes bytes) override {
    OURO_TRY(settle());
    OptimizerState::Map read;
    double lr = 0;
    try {
      OURO_TRY(read_states(bytes, kind(), &lr, &read));
    } catch (const std::bad_alloc&) {
      return {Reason::resource, "no memory to load the state of a server rule"};
    }
    states_ = std::move(read);
    options_.lr = lr;
    return {};
  }

 private:
  OptimizerState::Kind kind() const {
    return {kFirstFamily + static_cast<std::uint32_t>(options_.rule), 1, kArrays};
  }
  Result<std::shared_ptr<OptimizerState>> state_of(const Param&);
  Status settle() {
    Status s = used_.synchronize();
    used_ = {};
    return s;
  }

  ServerOptions options_;
  std::uint64_t digest_ = 0;  // of the options it was made with
  OptimizerState::Map states_;
  Stream used_;  // stream of the last step; its queue keeps the states alive itself
};

Result<std::shared_ptr<OptimizerState>> ServerOptimizer::state_of(const Param& p) {
  auto slot = states_.contains(p.name) ? states_.at(p.name) : nullptr;
  if (!slot) {
    OURO_ASSIGN(auto made, OptimizerState::make(p.value, kArrays, false));
    states_[p.name] = slot = std::move(made);
  }
  if (slot->count != p.value.count || slot->dtype != p.value.dtype)
    return invalid(fmt::format("parameter {} has {} elements of type {}, its state {} of type {}", p.name,
                               p.value.count, name(p.value.dtype), slot->count, name(slot->dtype)));
  return slot;
}

Status ServerOptimizer::step(std::span<const Param> params, const StepOptions& o, const Stream& stream) {
  if (o.exchange != nullptr) return invalid("a server rule has no exchange of messages");
  if (o.lr && !std::isfinite(*o.lr)) return invalid(fmt::format("learning rate {}", *o.lr));
  struct Item {
    Param param;
    std::shared_ptr<OptimizerState> state;
  };
  std::vector<Item> items;
  OURO_TRY(check_names("optimiser step", params));
  for (const Param& p : params) {
    if (p.grad.data == nullptr) continue;
    OURO_TRY(check_run(p.value, p.grad, {}));
    if (p.value.device.kind != Device::Kind::host)
      return unsupported(fmt::format(
          "server rules run on the host, parameter {} is on a GPU; OuterOptions::on_host steps there",
          p.name));
    OURO_ASSIGN(auto state, state_of(p));
    items.push_back({p, std::move(state)});
  }
  if (o.lr) options_.lr = *o.lr;
  if (!(stream == used_)) OURO_TRY(settle());
  used_ = stream;
  const double clip = o.scale.inverse * o.scale.clip;
  return on_host(stream, [items = std::move(items), options = options_, clip] {
    const StandardFloats floats;
    for (const Item& i : items) {
      const Rates rates{options.rule, options.lr, options.beta1,          options.beta2,
                        options.tau,  clip,       i.state->host_step == 0};
      with_float_type(i.param.value.dtype, [&]<class T>(T) {
        using C = decltype(load_wide(T{}));
        update(rates, static_cast<T*>(i.param.value.data), static_cast<const T*>(i.param.grad.data),
               reinterpret_cast<C*>(i.state->array(0)), reinterpret_cast<C*>(i.state->array(1)),
               i.param.value.count);
      });
      ++i.state->host_step;
    }
    return Status{};
  });
}

}  // namespace

Result<std::unique_ptr<Optimizer>> make_optimizer(const ServerOptions& o) {
  if (o.rule != ServerRule::adagrad && o.rule != ServerRule::adam && o.rule != ServerRule::yogi)
    return invalid(fmt::format("no such server rule ({})", static_cast<int>(o.rule)));
  const auto beta = [](double b) { return b >= 0 && b < 1; };
  if (!std::isfinite(o.lr) || !beta(o.beta1) || !beta(o.beta2) || !(o.tau > 0) || !std::isfinite(o.tau))
    return invalid(
        fmt::format("server rule: rate {}, betas {} and {}, tau {}; expected finite numbers, betas in [0, 1) "
                    "and tau above 0",
                    o.lr, o.beta1, o.beta2, o.tau));
  return std::unique_ptr<Optimizer>(std::make_unique<ServerOptimizer>(o));
}
Result<std::unique_ptr<Optimizer>> fed_avg(double lr, double momentum) {
  return make_optimizer(SgdOptions{.lr = lr, .momentum = momentum});
}
Result<std::unique_ptr<Optimizer>> fed_adam(ServerOptions o) {
  o.rule = ServerRule::adam;
  return make_optimizer(o);
}
Result<std::unique_ptr<Optimizer>> fed_yogi(ServerOptions o) {
  o.rule = ServerRule::yogi;
  return make_optimizer(o);
}
Result<std::unique_ptr<Optimizer>> diloco(double lr, double momentum) {
  return make_optimizer(SgdOptions{.lr = lr, .momentum = momentum, .nesterov = true});
}

}  // namespace ouro::train
