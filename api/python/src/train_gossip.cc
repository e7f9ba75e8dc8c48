// Decentralised training: ouro::train::GossipTrainer.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/src/bucket_rule.h"
#include "api/python/src/submit.h"
#include "api/python/src/train.h"
#include "ouro/train/gossip.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::GossipOptions;
using train::GossipTrainer;

/// A trainer with the memory of its model. Arrays that view its blocks keep it alive.
struct Trainer {
  Params params;
  Arrays buffers;
  Arrays gradients;  // gradients of the current step
  std::shared_ptr<Raised> raised = std::make_shared<Raised>();
  std::optional<GossipTrainer> trainer;
  std::optional<train::Average> average;
};

class PyGossip {
 public:
  explicit PyGossip(std::shared_ptr<Trainer> t) : held_(std::move(t)) {}
  GossipTrainer& operator*() const { return *held_->trainer; }
  Trainer& held() const { return *held_; }

  /// For calls that may wait or call Python.
  template <class Call>
  auto run(Call call) const {
    return held_->raised->run(*held_->trainer, std::move(call));
  }

  void grad_ready(int param, nb::handle grad, OptionalStream stream) {
    const Stream over = stream ? stream->stream() : Stream();
    if (grad.is_none()) {
      if (held_->params.zeros.contains(param))
        throw nb::value_error("grad_ready: the gradient was to be passed by this call; expected an array");
      return run([&](GossipTrainer& t) { return t.grad_ready(param, over); });
    }
    held_->gradients.emplace_back(grad, "gradient", false);
    const CView view = held_->gradients.back().cview();
    run([&](GossipTrainer& t) { return t.grad_ready(param, view, over); });
  }
  void grads_ready(const std::vector<int>& params, const nb::sequence& grads, OptionalStream stream) {
    const Stream over = stream ? stream->stream() : Stream();
    std::vector<CView> views;
    for (const nb::handle grad : grads) {
      held_->gradients.emplace_back(grad, "gradient", false);
      views.push_back(held_->gradients.back().cview());
    }
    if (views.size() != params.size()) throw nb::value_error("grads_ready: as many gradients as parameters");
    run([&](GossipTrainer& t) -> Status {
      for (std::size_t k = 0; k < params.size(); ++k)
        if (Status s = t.grad_ready(params[k], views[k], over); !s.ok()) return s;
      return {};
    });
  }
  void end_backward(OptionalStream stream) {
    const Stream over = stream ? stream->stream() : Stream();
    run([&](GossipTrainer& t) { return t.end_backward(over); });
    held_->gradients.clear();
  }
  nb::object value(int param) const {
    const auto params = (**this).params();
    if (param < 0 || static_cast<std::size_t>(param) >= params.size()) throw nb::index_error("param");
    const View& v = params[static_cast<std::size_t>(param)].value;
    const nb::capsule owner(new std::shared_ptr<Trainer>(held_),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<Trainer>*>(p); });
    return nb::cast(array_over(v, {v.count}, owner));
  }
  double global_average(bool keep, bool distance) {
    auto made = run([&](GossipTrainer& t) {
      held_->average.reset();
      return t.global_average({.keep = keep, .distance = distance});
    });
    const double far = made.distance;
    if (!keep) held_->average.emplace(std::move(made));
    return far;
  }
  void revert() {
    if (!held_->average) throw Failed{invalid("revert: there is no average to revert")};
    std::optional<train::Average> average = std::exchange(held_->average, std::nullopt);
    run([&](GossipTrainer&) { return average->revert(); });
  }

 private:
  std::shared_ptr<Trainer> held_;
};

void make(PyGossip* self, Group& group, const nb::sequence& params, const nb::sequence& buffers,
          const train::Topology& topology, nb::object optimizer, nb::object schedule, double bucket_mb,
          double clip_norm, const std::string& clip_scope, bool params_in_bucket, bool average_buffers,
          bool sync_all, bool find_unused, const std::string& order, nb::handle scaler) {
  using train::ClipScope;
  using train::RoundOrder;
  auto held = std::make_shared<Trainer>();
  held->params = params_of(params, true);
  for (const auto& [i, zeros] : held->params.zeros)
    if (const train::Param& p = held->params.list[static_cast<std::size_t>(i)];
        find_unused && p.value.device.kind == Device::Kind::cuda)
      throw nb::value_error(("params: the gradient of '" + p.name +
                             "' is True, and find_unused needs memory for it on its GPU; expected an array")
                                .c_str());
  std::vector<train::Buffer> others;
  for (const nb::handle item : buffers) {
    if (!nb::isinstance<nb::tuple>(item) || nb::len(item) < 2)
      wrong_type("buffers: each", "a tuple of name and values", item);
    const auto entry = nb::cast<nb::tuple>(item);
    const auto name = typed<std::string>("buffers: name", "a str", entry[0]);
    held->buffers.emplace_back(entry[1], name.c_str(), true);
    others.push_back({name, held->buffers.back().view()});
  }
  GossipOptions o{
      .topology = topology,
      .optimizer = factory_of(std::move(optimizer), held->raised),
      .schedule = schedules_of(std::move(schedule), held->raised),
      .bucket_mb = bucket_mb,
      .clip_norm = clip_norm,
      .clip_scope = one_of<ClipScope>("clip_scope", clip_scope,
                                      {{"bucket", ClipScope::bucket}, {"global", ClipScope::global}}),
      .params_in_bucket = params_in_bucket,
      .average_buffers = average_buffers,
      .sync_all = sync_all,
      .find_unused = find_unused,
      .order = one_of<RoundOrder>(
          "round_order", order, {{"sequential", RoundOrder::sequential}, {"upstream", RoundOrder::upstream}}),
      .scaler = scaler_of(scaler)};
  Result<GossipTrainer> made = [&] {
    Waiting waiting;
    return GossipTrainer::create(group, held->params.list, std::move(others), std::move(o));
  }();
  held->raised->check_status(made.status());
  held->trainer.emplace(*std::move(made));
  new (self) PyGossip(std::move(held));
}

void bind_steps(nb::class_<PyGossip>& trainer) {
  const auto none = nb::none();
  trainer
      .def(
          "begin_step",
          [](PyGossip& t, bool training) { t.run([&](GossipTrainer& g) { return g.begin_step(training); }); },
          "training"_a = true,
          "Call before the forward pass or, at the latest, before the first gradient. training: False\n"
          "for a pass without training, which does not count as a step.")
      .def("grad_ready", &PyGossip::grad_ready, "param"_a, "grad"_a = none, nb::kw_only(), "stream"_a = none,
           "Announces that the gradient of parameter `param`, its index in the list, is complete. grad:\n"
           "the array that holds it in this step, which is read and kept alive until end_backward; None:\n"
           "the parameter's own gradient array. stream: the stream that computes it.")
      .def("grads_ready", &PyGossip::grads_ready, "params"_a, "grads"_a, nb::kw_only(), "stream"_a = none,
           "Calls grad_ready for several parameters, in this order. ValueError: another number\n"
           "of gradients.")
      .def("end_backward", &PyGossip::end_backward, nb::kw_only(), "stream"_a = none,
           "Collective. Updates the remaining buckets; the parameters are then those of the next step.\n"
           "stream: work enqueued on it completes first.")
      .def(
          "set_accumulate", [](PyGossip& t, bool on) { (*t).set_accumulate(on); }, "on"_a,
          "While on, grad_ready and end_backward do nothing and steps are not counted: the caller\n"
          "accumulates gradients. Turn it off before the last micro-batch.");
}

void bind_state(nb::class_<PyGossip>& trainer) {
  trainer
      .def("value", &PyGossip::value, "param"_a,
           "Returns the current values of parameter `param` as a flat view, which is in its bucket after\n"
           "the first step. Pass it to numpy.asarray, torch.from_dlpack or the like; it is not an array\n"
           "itself. IndexError: no such parameter.")
      .def_prop_ro(
          "buckets",
          [](const PyGossip& t) {
            std::vector<std::vector<int>> list;
            for (const auto& b : (*t).buckets()) list.push_back(b.params);
            return list;
          },
          "List of the parameters' indices in each bucket; empty before the end of the first step.")
      .def_prop_ro(
          "steps", [](const PyGossip& t) { return (*t).steps(); }, "Number of completed training steps.")
      .def_prop_ro(
          "lr",
          [](const PyGossip& t) { return t.run([](GossipTrainer& g) { return Result<double>(g.lr()); }); },
          "Learning rate of the next update; 0 before the first.")
      .def_prop_ro(
          "scale", [](const PyGossip& t) { return (*t).scale(); },
          "Factor by which to multiply the loss; 1 without a scaler.")
      .def(
          "set_adaptive_factor", [](PyGossip& t, double a) { check((*t).set_adaptive_factor(a)); }, "a"_a,
          "Sets the factor `a`, 0 to 1, of later mixes: (1 - a) times the rank's own values plus a\n"
          "times the mix.")
      .def("global_average", &PyGossip::global_average, nb::kw_only(), "keep"_a = false, "distance"_a = false,
           "Collective, between steps: replaces all parameters by their mean over all ranks, until\n"
           "revert(), or permanently with `keep`. Returns the distance of this rank's parameters\n"
           "from the mean (L2 norm) if `distance` is True, else nan. UnsupportedError: `keep` with\n"
           "16-bit parameters.")
      .def("revert", &PyGossip::revert,
           "Restores the values from before global_average(). InvalidError: there is nothing to restore.")
      .def(
          "close", [](PyGossip& t) { t.run([](GossipTrainer& g) { return g.close(); }); },
          "Collective: waits until the neighbours have received everything they still need from this\n"
          "rank, then ends the trainer. Idempotent.");
  bind_saved(trainer,
             "Returns, as bytes, everything that the next steps depend on, including values. Each rank\n"
             "saves on its own, between steps.",
             "Collective: loads what save returned into a trainer that was made with the same arguments\n"
             "and has taken no step. InvalidError, on all ranks, with nothing changed: a state that is\n"
             "damaged or does not fit.");
}

}  // namespace

std::optional<train::GradScaler> scaler_of(nb::handle wanted) {
  if (wanted.is_none()) return std::nullopt;
  using train::ScalerScope;
  train::GradScaler s;
  if (!nb::isinstance<nb::dict>(wanted))
    wrong_type("scaler", "a dict of scale, growth, backoff, interval, scope", wanted);
  for (const auto& [key, value] : nb::cast<nb::dict>(wanted)) {
    const auto name = typed<std::string>("scaler: each key", "a str", key);
    const std::string argument = "scaler: " + name;
    if (name == "scale")
      s.scale = typed<double>(argument, "a number", value);
    else if (name == "growth")
      s.growth = typed<double>(argument, "a number", value);
    else if (name == "backoff")
      s.backoff = typed<double>(argument, "a number", value);
    else if (name == "interval")
      s.interval = typed<std::int64_t>(argument, "an integer", value);
    else if (name == "scope")
      s.scope = one_of<ScalerScope>("scope", typed<std::string>(argument, "a str", value),
                                    {{"all", ScalerScope::all}, {"local", ScalerScope::local}});
    else
      throw nb::value_error(
          ("scaler: '" + name + "'; expected scale, growth, backoff, interval, scope").c_str());
  }
  return s;
}

void bind_gossip(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<PyGossip> trainer(
      m, "GossipTrainer",
      "Decentralised data parallelism: each rank trains its own copy of a model and averages it\n"
      "with its neighbours' copies while it computes the next gradient. For PyTorch modules,\n"
      "see ouro.torch.GossipDataParallel.\n\n"
      "A step is begin_step, the forward and backward pass with grad_ready for each gradient, and\n"
      "end_backward. One thread drives a trainer. InvalidError for a wrong call changes nothing;\n"
      "any other error, and any disagreement between ranks, ends the trainer on all ranks.");
  trainer.def("__init__", &make, "group"_a, "params"_a, "buffers"_a, "topology"_a, "optimizer"_a,
              nb::kw_only(), "schedule"_a = none, "bucket_mb"_a = 25.0, "clip_norm"_a = 0.0,
              "clip_scope"_a = "bucket", "params_in_bucket"_a = true, "average_buffers"_a = false,
              "sync_all"_a = true, "find_unused"_a = false, "round_order"_a = "sequential", "scaler"_a = none,
              nb::keep_alive<1, 2>(),
              "Collective over the group; all ranks take rank 0's values. The options must be the same on\n"
              "all ranks.\n\n"
              "params: a list of (name, values, gradient, shape, channels_last); the last two are optional.\n"
              "values: an array that is used in place.\n"
              "gradient: an array of the same type and size; True: grad_ready passes one in each step;\n"
              "  None: the parameter is frozen.\n"
              "buffers: a list of (name, values).\n"
              "optimizer: a Rule, or a callable that takes the names of a bucket's parameters and\n"
              "  returns one.\n"
              "schedule: a Schedule, or such a callable that returns one.\n"
              "bucket_mb: size of a bucket in MiB; 0: one bucket per parameter.\n"
              "clip_norm: limit of the norm of the gradients of the bucket, or of all parameters with\n"
              "  clip_scope 'global'; 0: none.\n"
              "params_in_bucket: after the first step, values are in buckets, see value().\n"
              "average_buffers: global_average includes floating-point buffers.\n"
              "sync_all: rank 0 also sends its frozen parameters and buffers.\n"
              "find_unused: a missing gradient counts as zero instead of as an error.\n"
              "round_order: 'sequential', or 'upstream' to count rounds as Decent-DP does.\n"
              "scaler: a dict with scale, growth, backoff, interval and scope for loss scaling.");
  bind_steps(trainer);
  bind_state(trainer);
}

}  // namespace ouro::python
