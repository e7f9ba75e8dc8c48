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
  nb::class_<train::Mesh>(m, "Mesh", "Ranks in a grid of any number of dimensions, row-major.")
      .def_ro("ranks", &train::Mesh::ranks)
      .def_ro("shape", &train::Mesh::shape, "Number of places in each dimension.")
      .def_ro("axes", &train::Mesh::axes, "Name of each dimension.");
  nb::class_<train::Replica>(m, "Replica", "A rank's place among the replicas of its site.")
      .def_ro("local_rank", &train::Replica::local_rank, "Index of the rank's shard in its replica.")
      .def_ro("local_size", &train::Replica::local_size, "Number of shards of a replica.")
      .def_ro("rank", &train::Replica::rank, "Index of the rank's replica in its site.")
      .def_ro("world_size", &train::Replica::world_size, "Number of replicas of each site.");
  nb::class_<train::Federation>(m, "Federation", "A rank's place among the sites.")
      .def_ro("local_rank", &train::Federation::local_rank, "Rank within its site.")
      .def_ro("sizes", &train::Federation::sizes, "Number of ranks of each site.")
      .def_ro("rank", &train::Federation::rank, "Index of the rank's site.")
      .def_ro("count", &train::Federation::count, "Number of sites.");
  nb::class_<ParallelLayout>(
      m, "ParallelLayout",
      "The role of each rank in a sharded, replicated, federated job: a pure function of integers.")
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
          "federations: number of ranks of each site, in order; empty: no federation.\n"
          "hsdp: number of ranks of a replica; None: each site is one group of shards.\n"
          "streams: number of copies of the groups across sites and replicas.\n"
          "groups: 'senders', or 'all_replicas', which connects every rank with its counterparts if all\n"
          "  sites have the same size.\n"
          "fallback: 'drop_hsdp' ignores hsdp if all sites have one size that it does not divide;\n"
          "  'none' raises.\n\n"
          "Does not communicate. InvalidError: numbers that do not fit together.")
      .def_ro("rank", &ParallelLayout::rank)
      .def_ro("world_size", &ParallelLayout::world_size)
      .def_ro("replica", &ParallelLayout::replica)
      .def_ro("federation", &ParallelLayout::federation)
      .def_ro("fsdp", &ParallelLayout::fsdp,
              "Mesh of the ranks of this rank's site, with the axis 'shard'; None with hsdp.")
      .def_ro("hsdp", &ParallelLayout::hsdp,
              "Mesh of the ranks of this rank's site, with the axes 'replica' and 'shard'; None\n"
              "without hsdp.")
      .def_ro("is_sender", &ParallelLayout::is_sender,
              "Whether this rank's values enter the mean of the sites.")
      .def_ro("receive_from", &ParallelLayout::receive_from,
              "The rank that sends the mean to this rank; None for a sender.")
      .def_ro("federated_group", &ParallelLayout::federated_group,
              "World ranks of the group across the sites; this rank alone if it does not take part.")
      .def_ro("replica_group", &ParallelLayout::replica_group,
              "World ranks of this site that hold this rank's shard; empty without hsdp.")
      .def_ro("site", &ParallelLayout::site, "World ranks of this rank's site.")
      .def_ro("streams", &ParallelLayout::streams);
  m.def(
      "federation_sizes", [](int n, int k) { return value_of(train::federation_sizes(n, k)); }, "n"_a, "k"_a,
      "Returns the sizes of n / k sites of k ranks. InvalidError unless k divides n and is smaller.");
  m.def(
      "federation_sizes_from_env",
      [](int local_size) { return value_of(train::federation_sizes_from_env(local_size)); }, "local_size"_a,
      "Returns the sizes of the sites from XFFL_FEDERATED_LOCAL_WORLD_SIZE, which counts\n"
      "hosts of local_size ranks; an empty list if it is unset. InvalidError: not a list of\n"
      "positive numbers.");
  nb::class_<LayoutGroups>(
      m, "LayoutGroups",
      "The groups of a rank in its layout. A group that the layout lacks is None, or an empty list.")
      .def_ro("layout", &LayoutGroups::layout)
      .def_ro("replica", &LayoutGroups::replica)
      .def_ro("shard", &LayoutGroups::shard)
      .def_ro("federation", &LayoutGroups::federation, "The group of all ranks of this site.")
      .def_ro("federated", &LayoutGroups::federated, "List of groups across the sites, one per stream.")
      .def_ro("replica_average", &LayoutGroups::replica_average,
              "List of groups inside the site, one per stream.");
  m.def(
      "create_groups",
      [](Context& job, const ParallelLayout& layout, std::optional<double> deadline) {
        return value_of(train::create_groups(
            job, layout, {.deadline = deadline_of("deadline", deadline, Milliseconds(0))}));
      },
      "job"_a, "layout"_a, nb::kw_only(), "deadline"_a = nb::none(), nb::keep_alive<0, 1>(),
      "Creates this rank's groups of a layout and returns a LayoutGroups. Does not communicate.\n"
      "deadline: deadline of each operation of the groups in seconds; None: that of init() or\n"
      "OURO_DEADLINE if one was set, else an hour.");
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
      "Returns the names of the strategies by which an average can be cut into messages, as\n"
      "in xFFL.");
  nb::class_<PyPlan>(m, "AggregationPlan",
                     "Averages the same parameters over the sites repeatedly: on all ranks of a shard, each\n"
                     "parameter is replaced by the mean of the senders' values.")
      .def("__init__", &make_plan, "groups"_a, "params"_a, nb::kw_only(), "strategy"_a = kStrategy,
           "streams"_a = 1, "site_weights"_a = alike, "filter"_a = none, nb::keep_alive<1, 2>(),
           "params: a list of (name, values, None[, shape]); values is an array that is used in place.\n"
           "streams: number of streams, at most that of the layout.\n"
           "site_weights: one per site, with any sum; empty: all sites count equally.\n"
           "filter: filter(name) returns whether a parameter takes part; None: all do.\n\n"
           "Does not communicate. InvalidError: parameters or options that do not fit.")
      .def(
          "run", [](PyPlan& p) { p.run([](train::AggregationPlan& plan) { return plan.run(); }); },
          "Collective over all ranks of the layout; blocks, without the GIL. The first run compares the\n"
          "ranks' plans and raises InvalidError on every rank if they differ.")
      .def_prop_ro(
          "traffic", [](const PyPlan& p) { return traffic_of(p.what->traffic()); },
          "Bytes of one run on this rank: (contributed to the mean across sites, sent or received\n"
          "inside the site).");
  nb::class_<PyLocalSteps> steps(
      m, "LocalSteps",
      "The loop of FedAvg and DiLoCo: each site takes inner steps on its own, then all take one\n"
      "outer step.");
  steps
      .def("__init__", &make_local_steps, "groups"_a, "params"_a, "rule"_a, nb::kw_only(),
           "inner_steps"_a = 500, "delta"_a = "exact", "clip_norm"_a = 0.0, "on_host"_a = false,
           "strategy"_a = kStrategy, "streams"_a = 1, "site_weights"_a = alike, "filter"_a = none,
           nb::keep_alive<1, 2>(),
           "inner_steps: number of inner steps per outer step.\n"
           "rule: the Rule of the outer step, such as diloco(), applied to the change that a round\n"
           "  has made.\n"
           "delta: what the sites exchange: 'exact' for the parameters, or the change as 'bf16'\n"
           "  or 'int8'.\n"
           "clip_norm: limit of the norm of the change; 0: none.\n"
           "on_host: take the outer step of parameters on a GPU on the host.\n\n"
           "The other arguments are as in AggregationPlan.")
      .def(
          "step", [](PyLocalSteps& s) { return s.run([](train::LocalSteps& l) { return l.step(); }); },
          "Call after each inner step. Every inner_steps-th call is collective, blocks without the GIL,\n"
          "takes the outer step and returns True; the others return False.")
      .def_prop_ro(
          "rounds", [](const PyLocalSteps& s) { return s.what->rounds(); }, "Number of outer steps so far.")
      .def_prop_ro(
          "traffic", [](const PyLocalSteps& s) { return traffic_of(s.what->traffic()); },
          "Bytes of one round, as in AggregationPlan.traffic.");
  bind_saved(steps, "Returns, as bytes, everything that the next rounds depend on except the parameters.",
             "Loads what save returned into an object that was made with the same arguments. InvalidError:\n"
             "a damaged state, or one of other parameters or options; nothing changes.");
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
      "group"_a, "loss"_a, "length"_a,
      "Collective: returns the sum of losses divided by the sum of lengths over the group.\n"
      "InvalidError: a negative length, or a sum of 0.");
}

}  // namespace ouro::python
