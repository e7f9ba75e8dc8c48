// Optimisers, learning-rate schedules, and lists of parameters.
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>

#include "api/python/src/train.h"
#include "ouro/train/outer.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using Name = std::optional<std::string>;

train::OptimizerOptions options_of(const Name& decay_rule, bool master) {
  using train::DecayRule;
  train::OptimizerOptions o{.master = master};
  if (decay_rule)
    o.decay_rule = one_of<DecayRule>(
        "decay_rule", *decay_rule,
        {{"standard", DecayRule::standard}, {"upstream_inverted", DecayRule::upstream_inverted}});
  return o;
}

/// Checks the options immediately, by making one optimiser.
Rule rule_of(const char* name, double lr, std::function<Result<std::unique_ptr<train::Optimizer>>()> make) {
  Rule r{name, lr, std::move(make)};
  (void)value_of(r.make());
  return r;
}
template <class... Options>
Rule rule(const char* name, double lr, const Options&... options) {
  return rule_of(name, lr, [=] { return train::make_optimizer(options...); });
}

Rule sgd(double lr, double momentum, double dampening, double weight_decay, bool nesterov,
         const Name& decay_rule, bool master) {
  return rule("sgd", lr,
              train::SgdOptions{.lr = lr,
                                .momentum = momentum,
                                .dampening = dampening,
                                .weight_decay = weight_decay,
                                .nesterov = nesterov},
              options_of(decay_rule, master));
}
Rule adam(double lr, double beta1, double beta2, double eps, double weight_decay, bool decoupled,
          const Name& decay_rule, bool master) {
  return rule("adam", lr,
              train::AdamOptions{.lr = lr,
                                 .beta1 = beta1,
                                 .beta2 = beta2,
                                 .eps = eps,
                                 .weight_decay = weight_decay,
                                 .decoupled = decoupled},
              options_of(decay_rule, master));
}
Rule accum_adam(double lr, double beta1, double beta2, double eps, double weight_decay, int accum_iter,
                bool decoupled, const Name& decay_rule, bool master) {
  return rule("accum_adam", lr,
              train::AccumAdamOptions{.lr = lr,
                                      .beta1 = beta1,
                                      .beta2 = beta2,
                                      .eps = eps,
                                      .weight_decay = weight_decay,
                                      .accum_iter = accum_iter,
                                      .decoupled = decoupled},
              options_of(decay_rule, master));
}
Rule server(const std::string& name, double lr, double beta1, double beta2, double tau) {
  using train::ServerRule;
  const auto which = one_of<ServerRule>(
      "rule", name,
      {{"adagrad", ServerRule::adagrad}, {"adam", ServerRule::adam}, {"yogi", ServerRule::yogi}});
  return rule("server", lr,
              train::ServerOptions{.rule = which, .lr = lr, .beta1 = beta1, .beta2 = beta2, .tau = tau});
}

void bind_makers(nb::module_& m) {
  m.def("sgd", &sgd, "lr"_a = 1e-3, nb::kw_only(), "momentum"_a = 0.0, "dampening"_a = 0.0,
        "weight_decay"_a = 0.0, "nesterov"_a = false, "decay_rule"_a = nb::none(), "master"_a = false,
        "Returns the rule of stochastic gradient descent with momentum, as in PyTorch.\n\n"
        "decay_rule: 'standard' exempts parameters whose name contains 'bn' or 'bias' from weight\n"
        "  decay, 'upstream_inverted' exempts all others, None exempts none.\n"
        "master: 16-bit parameters get a float32 copy, to which the updates apply.\n\n"
        "InvalidError: options out of range.");
  m.def("adam", &adam, "lr"_a = 1e-3, nb::kw_only(), "beta1"_a = .9, "beta2"_a = .999, "eps"_a = 1e-8,
        "weight_decay"_a = 0.0, "decoupled"_a = false, "decay_rule"_a = nb::none(), "master"_a = false,
        "Returns the rule of Adam, or of AdamW with decoupled=True. decay_rule, master: as in sgd.");
  m.def("accum_adam", &accum_adam, "lr"_a = 1e-3, nb::kw_only(), "beta1"_a = .9, "beta2"_a = .999,
        "eps"_a = 1e-8, "weight_decay"_a = 0.0, "accum_iter"_a = 4, "decoupled"_a = false,
        "decay_rule"_a = nb::none(), "master"_a = false,
        "Returns the rule of Decent-DP's AccumAdam, or of AccumAdamW with decoupled=True: the moments\n"
        "are renewed once every accum_iter steps, by the mean gradient of these steps. decay_rule,\n"
        "master: as in sgd.");
  m.def(
      "fed_avg",
      [](double lr, double momentum) {
        return rule_of("fed_avg", lr, [=] { return train::fed_avg(lr, momentum); });
      },
      "lr"_a = 1.0, nb::kw_only(), "momentum"_a = 0.0,
      "Returns the server's rule of FedAvg, which takes the mean of the sites; with a momentum,\n"
      "of FedAvgM.");
  m.def("server", &server, "rule"_a, nb::kw_only(), "lr"_a = 1e-2, "beta1"_a = .9, "beta2"_a = .99,
        "tau"_a = 1e-3,
        "Returns the server's rule of FedAdagrad, FedAdam or FedYogi: `rule` is 'adagrad', 'adam' or\n"
        "'yogi'. For parameters on the host, or LocalSteps with on_host=True.");
  m.def(
      "diloco",
      [](double lr, double momentum) {
        return rule_of("diloco", lr, [=] { return train::diloco(lr, momentum); });
      },
      "lr"_a = .7, nb::kw_only(), "momentum"_a = .9,
      "Returns the server's rule of DiLoCo: SGD with Nesterov momentum.");
}

/// An optimiser whose parameters are passed to each step.
class PyOptimizer {
 public:
  explicit PyOptimizer(const Rule& r) : optimizer_(value_of(r.make())) {}
  void step(const nb::sequence& list, std::optional<double> lr) {
    const Params params = params_of(list);
    waited([&] { return optimizer_->step(params.list, {.lr = lr}); });
  }
  double lr() const { return optimizer_->lr(); }
  nb::bytes save() {
    return bytes_of(waited([&] { return optimizer_->save(); }));
  }
  void load(const nb::bytes& state) {
    const CBytes bytes = view_of(state);
    waited([&] { return optimizer_->load(bytes); });
  }

 private:
  std::unique_ptr<train::Optimizer> optimizer_;
};

void bind_schedules(nb::module_& m) {
  using train::Schedule;
  nb::class_<Schedule>(m, "Schedule", "The learning rate of each update 0, 1, 2, ...")
      .def(
          "__init__",
          [](Schedule* self, nb::object rate, std::int64_t known) {
            const Held f = hold(std::move(rate));
            const auto call = [f](std::int64_t update) {
              nb::gil_scoped_acquire held;
              return typed<double>("rate(update)", "a number", (*f)(update));
            };
            new (self) Schedule(call, known);
          },
          "rate"_a, nb::kw_only(), "known"_a = 1,
          "rate(update) returns the learning rate of an update as a float. A trainer queries updates 0,\n"
          "1, 2, ... as it reaches them, and also some of the first `known` to detect ranks whose\n"
          "schedules differ. An exception from rate ends the trainer on all ranks.")
      .def("at", &Schedule::at, "update"_a,
           "Returns the learning rate of an update, any that `rate` covers.");
  m.def(
      "cosine_with_warmup",
      [](double lr, std::int64_t t_max, std::int64_t t_warmup, double eta_min, double warmup_decay,
         const std::string& after) {
        using train::After;
        return value_of(train::cosine_with_warmup(
            lr, t_max, t_warmup, eta_min, warmup_decay,
            one_of<After>("after", after, {{"hold", After::hold}, {"periodic", After::periodic}})));
      },
      "lr"_a, "t_max"_a, "t_warmup"_a, "eta_min"_a = 1e-6, "warmup_decay"_a = 0.01, "after"_a = "hold",
      "Returns a Schedule that rises from lr * warmup_decay to lr in t_warmup updates and then\n"
      "follows a cosine down to eta_min in t_max updates. after: 'hold' keeps the end value,\n"
      "'periodic' continues the cosine.");
  m.def(
      "warmup_cosine_decay",
      [](double peak, std::int64_t epochs, std::int64_t steps_per_epoch, std::int64_t accum,
         double warmup_fraction, double final_fraction) {
        return value_of(train::warmup_cosine_decay({.peak = peak,
                                                    .epochs = epochs,
                                                    .steps_per_epoch = steps_per_epoch,
                                                    .accum = accum,
                                                    .warmup_fraction = warmup_fraction,
                                                    .final_fraction = final_fraction}));
      },
      "peak"_a, "epochs"_a, "steps_per_epoch"_a, "accum"_a = 1, "warmup_fraction"_a = 0.01,
      "final_fraction"_a = 0.01,
      "Returns xFFL's Schedule: a linear warm-up to `peak`, then a cosine down to final_fraction *\n"
      "peak. steps_per_epoch: micro-batches of an epoch. accum: micro-batches of an update.\n"
      "warmup_fraction: fraction of all updates.");
}

}  // namespace

Held hold(nb::object o) {
  return {new nb::object(std::move(o)), [](nb::object* p) {
            nb::gil_scoped_acquire held;
            delete p;
          }};
}

std::string Raised::first_line(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));  // the last line of a traceback: the exception
}
void Raised::check_status(const Status& s) {
  if (PyErr_Occurred()) throw nb::python_error();  // of a signal handler, which may have ended a wait
  if (first_) std::rethrow_exception(std::exchange(first_, nullptr));
  check(s);
}

Params params_of(const nb::sequence& sequence, bool may_come) {
  Params params;
  for (const nb::handle item : sequence) {
    constexpr auto kEntry = "a tuple of name, values, gradient, and if wanted shape and order";
    if (!nb::isinstance<nb::tuple>(item)) wrong_type("params: each", kEntry, item);
    const auto entry = nb::cast<nb::tuple>(item);
    if (entry.size() < 3) throw nb::value_error((std::string("params: each is ") + kEntry).c_str());
    train::Param p;
    p.name = typed<std::string>("params: name", "a str", entry[0]);
    params.arrays.emplace_back(entry[1], p.name.c_str(), true);
    p.value = params.arrays.back().view();
    if (const nb::handle grad = entry[2]; nb::isinstance<nb::bool_>(grad)) {
      if (nb::cast<bool>(grad)) {
        if (!may_come) throw nb::value_error("params: a gradient is an array, or None for what is frozen");
        // Untouched pages of zeroed memory take no space.
        p.grad = p.value;
        p.grad.data = std::calloc(p.value.bytes() + 1, 1);
        if (p.grad.data == nullptr) throw std::bad_alloc();
        params.zeros[static_cast<int>(params.list.size())].reset(p.grad.data, &std::free);
      }
    } else if (!grad.is_none()) {
      params.arrays.emplace_back(grad, (p.name + ": gradient").c_str(), false);
      p.grad = params.arrays.back().view();
    }
    if (entry.size() > 3)
      p.shape = typed<std::vector<std::int64_t>>(p.name + ": shape", "a list of integers", entry[3]);
    if (entry.size() > 4 && typed<bool>(p.name + ": channels last", "a bool", entry[4]))
      p.order = train::Order::channels_last;
    params.list.push_back(std::move(p));
  }
  return params;
}

void bind_rules(nb::module_& m) {
  nb::class_<Rule>(m, "Rule", "An update rule with its options, from which trainers make their optimisers.")
      .def_ro("lr", &Rule::lr, "The learning rate that the rule was made with.")
      .def_ro("name", &Rule::name)
      .def("__repr__", [](const Rule& r) { return "<ouro.train.Rule " + r.name + ">"; });
  bind_makers(m);
  bind_schedules(m);
  nb::class_<PyOptimizer>(m, "Optimizer", "A fused optimiser: a rule, and the state of each parameter.")
      .def(nb::init<const Rule&>(), "rule"_a)
      .def("step", &PyOptimizer::step, "params"_a, "lr"_a = nb::none(),
           "Updates the values of the parameters in place; blocks, without the GIL. params: a list of\n"
           "(name, values, gradient): arrays of float64, float32, bfloat16 or float16, both of the same\n"
           "type and size and on the same device; a parameter whose gradient is None is not updated. lr:\n"
           "learning rate of this step and later ones; None: unchanged.")
      .def_prop_ro("lr", &PyOptimizer::lr, "Learning rate of the next step.")
      .def("save", &PyOptimizer::save,
           "Returns, as bytes, everything that the next steps depend on except the parameters.")
      .def("load", &PyOptimizer::load, "state"_a,
           "Replaces the state by one that save returned for the same rule. InvalidError: a state that\n"
           "is damaged or of another rule; nothing changes.");
}

}  // namespace ouro::python
