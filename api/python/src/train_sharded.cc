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
          "training"_a = true,
          "Call before the forward pass. training: False for a pass without training, which does not\n"
          "count as a step.")
      .def(
          "grad_ready",
          [over](PySharded& t, int param, OptionalStream stream) {
            t.run([&](ShardedTrainer& s) { return s.grad_ready(param, over(stream)); });
          },
          "param"_a, nb::kw_only(), "stream"_a = none,
          "Announces that the gradient of parameter `param`, its index in the list, is complete in its\n"
          "array. stream: the stream that computes it.")
      .def(
          "end_backward",
          [over](PySharded& t, OptionalStream stream) {
            t.run([&](ShardedTrainer& s) { return s.end_backward(over(stream)); });
          },
          nb::kw_only(), "stream"_a = none,
          "Collective. Reduces and updates the remaining buckets; values are final on return. stream:\n"
          "work enqueued on it completes first.")
      .def(
          "set_accumulate", [](PySharded& t, bool on) { (*t).set_accumulate(on); }, "on"_a,
          "While on, grad_ready and end_backward do nothing and steps are not counted: the caller\n"
          "accumulates gradients. Turn it off before the last micro-batch.");
}

void bind_state(nb::class_<PySharded>& trainer) {
  trainer
      .def(
          "value", [](const PySharded& t, int param) { return t.place(param, false); }, "param"_a,
          "Returns all values of parameter `param`, where they are stored, as a flat view. Pass it to\n"
          "numpy.asarray, torch.from_dlpack or the like; it is not an array itself. IndexError: no\n"
          "such parameter.")
      .def(
          "gradient", [](const PySharded& t, int param) { return t.place(param, true); }, "param"_a,
          "Returns the memory in which the gradient of parameter `param` must be stored, as a flat view\n"
          "like value(); None for a frozen parameter.")
      .def_prop_ro(
          "shard",
          [](const PySharded& t) {
            std::vector<std::string> names;
            for (const auto& p : (*t).shard()) names.push_back(p.name);
            return names;
          },
          "Names of the parameters of which this rank updates a part, bucket by bucket.")
      .def_prop_ro(
          "steps", [](const PySharded& t) { return (*t).steps(); },
          "Number of completed training steps, including skipped ones.")
      .def_prop_ro(
          "lr",
          [](const PySharded& t) { return t.run([](ShardedTrainer& g) { return Result<double>(g.lr()); }); },
          "Learning rate of the next update.")
      .def_prop_ro(
          "scale", [](const PySharded& t) { return (*t).scale(); },
          "Factor by which to multiply the loss; 1 without a scaler.")
      .def_prop_ro(
          "grad_norm", [](const PySharded& t) { return (*t).grad_norm(); },
          "L2 norm of the last step's mean gradient before clipping; nan unless clip_norm is set.")
      .def(
          "close", [](PySharded& t) { t.run([](ShardedTrainer& s) { return s.close(); }); },
          "Collective: waits until no rank needs this one any more, then ends the trainer. Idempotent.");
  bind_saved(trainer,
             "Returns, as bytes, everything that the next steps depend on and this rank owns. Each rank\n"
             "saves on its own, between steps.",
             "Collective: loads what save returned into a trainer that was made with the same arguments\n"
             "and has taken no step. InvalidError, on all ranks, with nothing changed: a state that is\n"
             "damaged or does not fit.");
}

}  // namespace

void bind_sharded(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<PySharded> trainer(
      m, "ShardedTrainer",
      "Sharded and plain data parallelism: gradients are averaged bucket by bucket, overlapped\n"
      "with the backward pass; each rank updates its shard of the parameters, and all ranks gather\n"
      "the result.\n\n"
      "A step is begin_step, the forward and backward pass with grad_ready for each gradient, and\n"
      "end_backward. One thread drives a trainer. InvalidError for a wrong call changes nothing;\n"
      "any other error, and any disagreement between ranks, ends the trainer on all ranks.");
  trainer.def("__init__", &make, "params"_a, "optimizer"_a, nb::kw_only(), "shards"_a.none() = none,
              "replicas"_a.none() = none, "schedule"_a = none, "bucket_mb"_a = 25.0,
              "order"_a = std::vector<int>(), "clip_norm"_a = 0.0, "params_in_bucket"_a = true,
              "grads_in_bucket"_a = false, "sync_all"_a = true, "scaler"_a = none, "numerics"_a = none,
              nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
              "Collective over the groups; all ranks take rank 0's values. The options must be the same on\n"
              "all ranks.\n\n"
              "shards: the group whose ranks update one shard each (FSDP). shards and replicas: the two\n"
              "  groups of this rank in a mesh (HSDP). replicas alone: no shards (DDP). ValueError:\n"
              "  neither group.\n"
              "params: a list of (name, values, gradient, shape); shape is optional.\n"
              "gradient: an array of the same type and size as values; None: the parameter is frozen.\n"
              "optimizer: a Rule, or a callable that takes the names of a bucket's parameters and\n"
              "  returns one.\n"
              "schedule: a Schedule, or such a callable that returns one.\n"
              "bucket_mb: size of a bucket in MiB; 0: one bucket per parameter.\n"
              "order: indices of the trainable parameters in the order in which gradients usually become\n"
              "  ready; empty: from the end of the list.\n"
              "clip_norm: limit of the norm of the mean gradient; 0: none.\n"
              "params_in_bucket, grads_in_bucket: from now on, values or gradients are stored where value()\n"
              "  and gradient() say.\n"
              "sync_all: rank 0 also sends its frozen parameters.\n"
              "scaler: a dict with scale, growth, backoff and interval for loss scaling.\n"
              "numerics: of the reductions, 'fast' or 'canonical'; None: the groups'.");
  bind_steps(trainer);
  bind_state(trainer);
}

}  // namespace ouro::python
