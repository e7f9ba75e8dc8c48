// Federated training: layouts, their groups, averages of sites, local steps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/src/submit.h"
#include "api/python/src/train.h"
#include "ouro/train/outer.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::LayoutGroups;
using train::ParallelLayout;

/// The object that a plan's calls work on, its parameters, and the exceptions of its calls into Python.
template <class T>
struct Working {
  explicit Working(Params p) : params(std::move(p)) {}
  Working(Working&&) noexcept = default;

  Params params;
  std::shared_ptr<Raised> raised = std::make_shared<Raised>();
  std::optional<T> what;

  /// The value of `call(*what)`, which waits without the GIL.
  template <class Call>
  auto run(Call call) {
    return raised->run(*what, std::move(call));
  }
};
using PyPlan = Working<train::AggregationPlan>;
using PyLocalSteps = Working<train::LocalSteps>;

train::Strategy strategy_of(const std::string& name) {
  using train::Strategy;
  std::string names;
  for (int k = 0; k <= static_cast<int>(Strategy::bucket_optimized_coalesced); ++k) {
    const auto s = static_cast<Strategy>(k);
    if (name == train::name(s)) return s;
    names += (k > 0 ? ", " : "") + std::string(train::name(s));
  }
  throw nb::value_error(("strategy: '" + name + "'; expected one of " + names).c_str());
}

train::AggregateOptions options_of(const std::string& strategy, int streams, std::vector<double> site_weights,
                                   nb::object filter, std::shared_ptr<Raised> raised) {
  train::AggregateOptions o{
      .strategy = strategy_of(strategy), .streams = streams, .site_weights = std::move(site_weights)};
  if (!filter.is_none())
    o.filter = [f = hold(std::move(filter)), raised = std::move(raised)](const train::Param& p) {
      bool takes_part = false;
      (void)raised
          ->in_python([&] { takes_part = typed<bool>("filter", "a bool from the callable", (*f)(p.name)); })
          .ok();
      return takes_part;
    };
  return o;
}

void make_plan(PyPlan* self, const LayoutGroups& groups, const nb::sequence& params,
               const std::string& strategy, int streams, std::vector<double> site_weights,
               nb::object filter) {
  PyPlan plan(params_of(params));
  auto made = train::plan_aggregation(
      groups, plan.params.list,
      options_of(strategy, streams, std::move(site_weights), std::move(filter), plan.raised));
  plan.raised->check_status(made.status());
  plan.what = value_of(std::move(made));
  new (self) PyPlan(std::move(plan));
}

void make_local_steps(PyLocalSteps* self, const LayoutGroups& groups, const nb::sequence& params,
                      const Rule& rule, std::int64_t inner_steps, const std::string& delta, double clip_norm,
                      bool on_host, const std::string& strategy, int streams,
                      std::vector<double> site_weights, nb::object filter) {
  using train::DeltaFormat;
  PyLocalSteps steps(params_of(params));
  train::LocalStepsOptions o;
  o.inner_steps = inner_steps;
  o.delta = one_of<DeltaFormat>(
      "delta", delta,
      {{"exact", DeltaFormat::exact}, {"bf16", DeltaFormat::bf16}, {"int8", DeltaFormat::int8}});
  o.outer.clip_norm = clip_norm;
  o.outer.on_host = on_host;
  o.aggregate = options_of(strategy, streams, std::move(site_weights), std::move(filter), steps.raised);
  auto made = train::LocalSteps::create(groups, steps.params.list, value_of(rule.make()), std::move(o));
  steps.raised->check_status(made.status());
  steps.what = value_of(std::move(made));
  new (self) PyLocalSteps(std::move(steps));
}

nb::tuple traffic_of(const train::AggregateTraffic& t) { return nb::make_tuple(t.across, t.inside); }

void bind_layouts(nb::module_& m) {
  nb::class_<train::Mesh>(m, "Mesh", "Ranks in a grid, row-major.")
      .def_ro("ranks", &train::Mesh::ranks)
      .def_ro("shape", &train::Mesh::shape, "Places of each dimension.")
      .def_ro("axes", &train::Mesh::axes, "A name each.");
  nb::class_<train::Replica>(m, "Replica", "A rank's place among the replicas of its site.")
      .def_ro("local_rank", &train::Replica::local_rank, "Its shard.")
      .def_ro("local_size", &train::Replica::local_size, "Shards of a replica.")
      .def_ro("rank", &train::Replica::rank, "Its replica.")
      .def_ro("world_size", &train::Replica::world_size, "Replicas of each site.");
  nb::class_<train::Federation>(m, "Federation", "A rank's place among the sites.")
      .def_ro("local_rank", &train::Federation::local_rank, "Within its site.")
      .def_ro("sizes", &train::Federation::sizes, "Ranks of each site.")
      .def_ro("rank", &train::Federation::rank, "Its site.")
      .def_ro("count", &train::Federation::count, "How many sites there are.");
  nb::class_<ParallelLayout>(
      m, "ParallelLayout", "Who is who in a sharded, replicated, federated job: a pure function of integers.")
      .def(
          "__init__",
          [](ParallelLayout* self, int rank, int world_size, std::vector<int> federations,
             std::optional<int> hsdp, int streams, const std::string& groups, const std::string& fallback) {
            using train::Fallback;
            using train::FederatedGroups;
            new (self) ParallelLayout(value_of(ParallelLayout::make(
                {.rank = rank,
                 .world_size = world_size,
                 .federations = std::move(federations),
                 .hsdp = hsdp,
                 .streams = streams,
                 .groups = one_of<FederatedGroups>("groups", groups,
                                                   {{"senders", FederatedGroups::senders},
                                                    {"all_replicas", FederatedGroups::all_replicas}}),
                 .fallback =
                     one_of<Fallback>("fallback", fallback,
                                      {{"none", Fallback::none}, {"drop_hsdp", Fallback::drop_hsdp}})})));
          },
          "rank"_a, "world_size"_a, "federations"_a = std::vector<int>(), "hsdp"_a = nb::none(),
          nb::kw_only(), "streams"_a = 1, "groups"_a = "senders", "fallback"_a = "none",
          "federations: ranks of each site, in order; none: no federation. hsdp: ranks of a replica; None: "
          "each "
          "site is one\n"
          "group of shards. streams: how often the groups across sites exist.")
      .def_ro("rank", &ParallelLayout::rank)
      .def_ro("world_size", &ParallelLayout::world_size)
      .def_ro("replica", &ParallelLayout::replica)
      .def_ro("federation", &ParallelLayout::federation)
      .def_ro("fsdp", &ParallelLayout::fsdp, "The ranks of my site, along 'shard'.")
      .def_ro("hsdp", &ParallelLayout::hsdp, "The ranks of my site, along 'replica' and 'shard'.")
      .def_ro("is_sender", &ParallelLayout::is_sender, "Whether my values enter the mean of the sites.")
      .def_ro("receive_from", &ParallelLayout::receive_from, "Who sends to me, where I am no sender.")
      .def_ro("federated_group", &ParallelLayout::federated_group, "Across the sites.")
      .def_ro("replica_group", &ParallelLayout::replica_group, "Who has my shard in my site.")
      .def_ro("site", &ParallelLayout::site, "All ranks of my site.")
      .def_ro("streams", &ParallelLayout::streams);
  m.def(
      "federation_sizes", [](int n, int k) { return value_of(train::federation_sizes(n, k)); }, "n"_a, "k"_a,
      "n / k sites of k ranks.");
  m.def(
      "federation_sizes_from_env",
      [](int local_size) { return value_of(train::federation_sizes_from_env(local_size)); }, "local_size"_a,
      "Of XFFL_FEDERATED_LOCAL_WORLD_SIZE, which counts hosts of local_size ranks; unset: no sites.");
  nb::class_<LayoutGroups>(m, "LayoutGroups",
                           "The groups of a rank in its layout; None: it has no such group.")
      .def_ro("layout", &LayoutGroups::layout)
      .def_ro("replica", &LayoutGroups::replica)
      .def_ro("shard", &LayoutGroups::shard)
      .def_ro("federation", &LayoutGroups::federation, "All ranks of my site.")
      .def_ro("federated", &LayoutGroups::federated, "Across the sites, one a stream.")
      .def_ro("replica_average", &LayoutGroups::replica_average, "Inside the site, one a stream.");
  m.def(
      "create_groups",
      [](Context& job, const ParallelLayout& layout, std::optional<double> deadline) {
        return value_of(train::create_groups(
            job, layout, {.deadline = deadline_of("deadline", deadline, Milliseconds(0))}));
      },
      "job"_a, "layout"_a, nb::kw_only(), "deadline"_a = nb::none(), nb::keep_alive<0, 1>(),
      "Does not communicate. deadline: seconds; an hour where nothing says another.");
}

}  // namespace

void bind_federated(nb::module_& m) {
  const auto none = nb::none();
  const std::vector<double> alike;
  constexpr auto kStrategy = "bucket_optimized_coalesced";
  bind_layouts(m);
  m.def(
      "strategies",
      [] {
        std::vector<std::string> names;
        for (int k = 0; k <= static_cast<int>(train::Strategy::bucket_optimized_coalesced); ++k)
          names.emplace_back(train::name(static_cast<train::Strategy>(k)));
        return names;
      },
      "How an average may be cut into messages, by xFFL's names.");
  nb::class_<PyPlan>(
      m, "AggregationPlan",
      "The mean of the sites, again and again: each parameter of all ranks of a shard becomes the "
      "mean of the senders'.")
      .def("__init__", &make_plan, "groups"_a, "params"_a, nb::kw_only(), "strategy"_a = kStrategy,
           "streams"_a = 1, "site_weights"_a = alike, "filter"_a = none, nb::keep_alive<1, 2>(),
           "params: a list of (name, values, None[, shape]), values an array that is used where it lies. "
           "streams: of the\n"
           "layout. site_weights: one a site, of any sum. filter: filter(name), whether a parameter takes "
           "part.")
      .def(
          "run", [](PyPlan& p) { p.run([](train::AggregationPlan& plan) { return plan.run(); }); },
          "Collective over all ranks of the layout; blocks. The first run compares what the ranks have "
          "planned.")
      .def_prop_ro(
          "traffic", [](const PyPlan& p) { return traffic_of(p.what->traffic()); },
          "Bytes of a run: (given to the mean across sites, sent or received inside the site).");
  nb::class_<PyLocalSteps> steps(
      m, "LocalSteps",
      "The loop of FedAvg and DiLoCo: inner steps of each site by itself, then an outer step "
      "of all.");
  steps
      .def("__init__", &make_local_steps, "groups"_a, "params"_a, "rule"_a, nb::kw_only(),
           "inner_steps"_a = 500, "delta"_a = "exact", "clip_norm"_a = 0.0, "on_host"_a = false,
           "strategy"_a = kStrategy, "streams"_a = 1, "site_weights"_a = alike, "filter"_a = none,
           nb::keep_alive<1, 2>(),
           "rule: of the outer step, such as diloco(), on the difference that a round has made. delta: what "
           "crosses the\n"
           "sites: 'exact', or the difference as 'bf16' or 'int8'. The rest as of AggregationPlan.")
      .def(
          "step", [](PyLocalSteps& s) { return s.run([](train::LocalSteps& l) { return l.step(); }); },
          "After each inner step. Collective in every inner_steps-th call, which returns True and waits.")
      .def_prop_ro(
          "rounds", [](const PyLocalSteps& s) { return s.what->rounds(); }, "Outer steps so far.")
      .def_prop_ro(
          "traffic", [](const PyLocalSteps& s) { return traffic_of(s.what->traffic()); },
          "Bytes of a round, as of AggregationPlan.");
  bind_saved(steps, "All that the next rounds depend on, but for the parameters.",
             "What save gave, into one that was made alike.");
  m.def(
      "mean_loss",
      [](Group& site, double loss, std::int64_t length) {
        Result<double> mean = [&] {
          Waiting waiting;
          return train::mean_loss(site, loss, length);
        }();
        check_interrupted(mean.status());
        return *mean;
      },
      "group"_a, "loss"_a, "length"_a, "Collective: sum of losses / sum of lengths over the group.");
}

}  // namespace ouro::python
