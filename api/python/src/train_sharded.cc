// Sharded and plain data parallelism: ouro::train::ShardedTrainer.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/src/bucket_rule.h"
#include "api/python/src/submit.h"
#include "api/python/src/train.h"
#include "ouro/train/shard.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::ShardedTrainer;

/// A trainer with the memory of its model. Arrays that view its blocks keep it alive.
struct Sharded {
  Params params;
  std::shared_ptr<Raised> raised = std::make_shared<Raised>();
  std::optional<ShardedTrainer> trainer;
};

class PySharded {
 public:
  explicit PySharded(std::shared_ptr<Sharded> s) : held_(std::move(s)) {}
  ShardedTrainer& operator*() const { return *held_->trainer; }

  /// For calls that may wait or call Python.
  template <class Call>
  auto run(Call call) const {
    return held_->raised->run(*held_->trainer, std::move(call));
  }

  nb::object place(int param, bool gradient) const {
    const auto params = (**this).params();
    if (param < 0 || static_cast<std::size_t>(param) >= params.size()) throw nb::index_error("param");
    const auto& p = params[static_cast<std::size_t>(param)];
    const View& v = gradient ? p.grad : p.value;
    if (v.data == nullptr) return nb::none();
    const nb::capsule owner(new std::shared_ptr<Sharded>(held_),
                            [](void* s) noexcept { delete static_cast<std::shared_ptr<Sharded>*>(s); });
    return nb::cast(array_over(v, {v.count}, owner));
  }

 private:
  std::shared_ptr<Sharded> held_;
};

void make(PySharded* self, const nb::sequence& params, nb::object optimizer, Group* shards, Group* replicas,
          nb::object schedule, double bucket_mb, std::vector<int> order, double clip_norm,
          bool params_in_bucket, bool grads_in_bucket, bool sync_all, nb::handle scaler,
          std::optional<std::string> numerics_name) {
  if (shards == nullptr && replicas == nullptr) throw nb::value_error("shards, replicas, or both");
  auto held = std::make_shared<Sharded>();
  held->params = params_of(params);
  train::ShardOptions o{.optimizer = factory_of(std::move(optimizer), held->raised, true),
                        .schedule = schedules_of(std::move(schedule), held->raised),
                        .bucket_mb = bucket_mb,
                        .order = std::move(order),
                        .clip_norm = clip_norm,
                        .params_in_bucket = params_in_bucket,
                        .grads_in_bucket = grads_in_bucket,
                        .sync_all = sync_all,
                        .scaler = scaler_of(scaler),
                        .numerics = numerics(std::move(numerics_name))};
  Result<ShardedTrainer> made = [&] {
    Waiting waiting;
    const auto& list = held->params.list;
    if (shards == nullptr) return ShardedTrainer::data_parallel(*replicas, list, std::move(o));
    if (replicas == nullptr) return ShardedTrainer::create(*shards, list, std::move(o));
    return ShardedTrainer::create(*shards, *replicas, list, std::move(o));
  }();
  held->raised->check_status(made.status());
  held->trainer.emplace(*std::move(made));
  new (self) PySharded(std::move(held));
}

void bind_steps(nb::class_<PySharded>& trainer) {
  const auto none = nb::none();
  const auto over = [](const OptionalStream& s) { return s ? s->stream() : Stream(); };
  trainer
      .def(
          "begin_step",
          [](PySharded& t, bool training) {
            t.run([&](ShardedTrainer& s) { return s.begin_step(training); });
          },
          "training"_a = true, "Before the forward pass.")
      .def(
          "grad_ready",
          [over](PySharded& t, int param, OptionalStream stream) {
            t.run([&](ShardedTrainer& s) { return s.grad_ready(param, over(stream)); });
          },
          "param"_a, nb::kw_only(), "stream"_a = none,
          "The gradient of parameter `param`, its place in the list, is complete where it lies. stream: on "
          "which it is computed.")
      .def(
          "end_backward",
          [over](PySharded& t, OptionalStream stream) {
            t.run([&](ShardedTrainer& s) { return s.end_backward(over(stream)); });
          },
          nb::kw_only(), "stream"_a = none, "Collective. Updates what is left; values are final on return.")
      .def(
          "set_accumulate", [](PySharded& t, bool on) { (*t).set_accumulate(on); }, "on"_a,
          "While on, grad_ready and end_backward do nothing: gradients are only summed up.");
}

void bind_state(nb::class_<PySharded>& trainer) {
  trainer
      .def(
          "value", [](const PySharded& t, int param) { return t.place(param, false); }, "param"_a,
          "The values of a parameter where they are, whole and flat. For numpy.asarray,\n"
          "torch.from_dlpack and the like; it is no array itself.")
      .def(
          "gradient", [](const PySharded& t, int param) { return t.place(param, true); }, "param"_a,
          "Where its gradient is to be, flat, as value(); None for what is frozen.")
      .def_prop_ro(
          "shard",
          [](const PySharded& t) {
            std::vector<std::string> names;
            for (const auto& p : (*t).shard()) names.push_back(p.name);
            return names;
          },
          "Of which parameters this rank updates a part, bucket by bucket.")
      .def_prop_ro(
          "steps", [](const PySharded& t) { return (*t).steps(); }, "Training steps that were completed.")
      .def_prop_ro(
          "lr",
          [](const PySharded& t) { return t.run([](ShardedTrainer& g) { return Result<double>(g.lr()); }); },
          "Of the next update.")
      .def_prop_ro(
          "scale", [](const PySharded& t) { return (*t).scale(); }, "What to multiply the loss with.")
      .def_prop_ro(
          "grad_norm", [](const PySharded& t) { return (*t).grad_norm(); },
          "Of the last step's mean gradient, before it was clipped; nan unless clip_norm is set.")
      .def(
          "close", [](PySharded& t) { t.run([](ShardedTrainer& s) { return s.close(); }); },
          "Collective: waits until no rank needs this one any more, and ends. May be called again.");
  bind_saved(trainer, "All that the next steps depend on and this rank owns; on each rank for itself.",
             "Collective: what save gave, into a trainer that was made alike and has taken no step.");
}

}  // namespace

void bind_sharded(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<PySharded> trainer(
      m, "ShardedTrainer",
      "Sharded and plain data parallel: gradients are averaged bucket by bucket beside the backward pass, "
      "each rank updates\n"
      "its shard of the parameters, and all gather the result.");
  trainer.def(
      "__init__", &make, "params"_a, "optimizer"_a, nb::kw_only(), "shards"_a.none() = none,
      "replicas"_a.none() = none, "schedule"_a = none, "bucket_mb"_a = 25.0, "order"_a = std::vector<int>(),
      "clip_norm"_a = 0.0, "params_in_bucket"_a = true, "grads_in_bucket"_a = false, "sync_all"_a = true,
      "scaler"_a = none, "numerics"_a = none, nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
      "Collective over the groups; all ranks take rank 0's values.\n\n"
      "shards: the group whose ranks update one shard each (FSDP); with replicas, the two groups of this "
      "rank in a mesh\n"
      "(HSDP); replicas alone: no shards (DDP). params: a list of (name, values, gradient, shape), the last "
      "if wanted;\n"
      "gradient: an array like the values, None: frozen. optimizer: a Rule, or a callable that returns one "
      "for the names of\n"
      "a bucket's parameters. schedule: a Schedule, or a callable alike. params_in_bucket, grads_in_bucket: "
      "from now on\n"
      "values, or gradients, are where value() and gradient() say. scaler: a dict of scale, growth, backoff, "
      "interval.");
  bind_steps(trainer);
  bind_state(trainer);
}

}  // namespace ouro::python
