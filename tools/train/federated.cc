// The loop of federated training: inner steps of a site, outer steps of all. See federated.h.
#include "tools/train/federated.h"

#include <fmt/format.h>

#include <chrono>

#include "ouro/train/average.hpp"
#include "tools/train/checkpoint.h"

namespace ouro::tools {
namespace {

Result<std::unique_ptr<train::Optimizer>> make_server(Server s) {
  switch (s) {
    case Server::avg:
      return train::fed_avg();
    case Server::adam:
      return train::fed_adam();
    case Server::yogi:
      return train::fed_yogi();
    case Server::nesterov:
      return train::diloco();
  }
  return invalid("no such server");
}

/// The samples that this rank takes in a step: those of its site, divided among the ranks of the site.
struct Share {
  Pool pool;
  std::int64_t ranks, rank, each;

  Share(const Task& task, const train::ParallelLayout& l, const TrainOptions& o)
      : pool(task.network().samples(), o.seed, l.federation->rank, l.federation->count),
        ranks(static_cast<std::int64_t>(l.site.size())),
        rank(l.federation->local_rank),
        each((*o.batch + l.world_size - 1) / l.world_size) {}
  std::vector<std::uint32_t> of_step(std::int64_t t) const {
    std::vector<std::uint32_t> mine;
    for (std::int64_t k = 0; k < each; ++k) mine.push_back(pool[(t * ranks + rank) * each + k]);
    return mine;
  }
};

/// The state of a run, between sites and within this rank's site.
struct Parts {
  std::vector<train::Param> params;
  std::unique_ptr<train::Optimizer> inner, server;

  /// Sites are equal when they are saved, so the values that LocalSteps keeps are then the
  /// parameters themselves.
  Result<Checkpoint> save(Task& task, std::int64_t step, train::Optimizer& outer) {
    OURO_ASSIGN(auto mine, inner->save());
    OURO_ASSIGN(auto theirs, outer.save());
    Bytes values;
    for (const train::Param& p : params) {
      const auto* at = static_cast<const std::byte*>(p.value.data);
      values.insert(values.end(), at, at + p.value.bytes());
    }
    return Checkpoint{step, {std::move(values), std::move(mine), std::move(theirs), task.statistics()}};
  }
  Status load(Task& task, const Checkpoint& state) {
    std::size_t bytes = 0;
    for (const train::Param& p : params) bytes += p.value.bytes();
    if (state.parts[0].size() != bytes)
      return invalid(fmt::format("{} bytes of parameters, expected {}", state.parts[0].size(), bytes));
    const std::byte* at = state.parts[0].data();
    for (const train::Param& p : params) {
      std::copy_n(at, p.value.bytes(), static_cast<std::byte*>(p.value.data));
      at += p.value.bytes();
    }
    OURO_TRY(inner->load(state.parts[1]));
    OURO_TRY(server->load(state.parts[2]));
    return task.set_statistics(state.parts[3]);
  }
};

Result<std::vector<int>> sizes_of(const TrainOptions& o, int ranks) {
  if (o.site_ranks.empty()) return site_sizes(ranks, o.sites);
  std::int64_t sum = 0;
  for (const int n : o.site_ranks) sum += n;
  if (sum == ranks) return o.site_ranks;
  return invalid(
      fmt::format("--sites {}: {} ranks, but the job has {}", fmt::join(o.site_ranks, ","), sum, ranks));
}

}  // namespace

Result<std::vector<int>> site_sizes(int ranks, int sites) {
  if (sites < 1 || sites > ranks)
    return invalid(fmt::format("--sites {}: expected 1 to {}, one rank a site at least", sites, ranks));
  std::vector<int> sizes(static_cast<std::size_t>(sites), ranks / sites);
  for (int s = 0; s < ranks % sites; ++s) ++sizes[static_cast<std::size_t>(s)];
  return sizes;
}

Result<TrainReport> train_federated(Context& c, TrainOptions options) {
  options.strategy = options.server == Server::nesterov || options.strategy == Strategy::diloco
                         ? Strategy::diloco
                         : Strategy::federated;
  OURO_ASSIGN(const auto settled, settle(std::move(options), c.world()));
  const TrainOptions& o = settled;
  Group& world = c.world();
  OURO_ASSIGN(const auto sizes, sizes_of(o, c.world_size()));
  OURO_ASSIGN(const auto layout,
              train::ParallelLayout::make(
                  {.rank = c.rank(), .world_size = c.world_size(), .federations = sizes, .hsdp = 1}));
  OURO_ASSIGN(const auto schedule, schedule_of(o));
  OURO_ASSIGN(auto groups, create_groups(c, layout, {.deadline = Milliseconds(0), .numerics = o.numerics}));
  OURO_ASSIGN(auto task, Task::make(c, o));

  Parts parts{.params = task.params(), .inner = {}, .server = {}};
  const std::span<const train::Param> params = parts.params;
  OURO_ASSIGN(parts.inner, optimizer_of(o)(params));
  OURO_ASSIGN(parts.server, make_server(o.server));
  TrainReport report{.options = o, .ranks = c.world_size(), .sites = sizes};
  if (!o.resume.empty()) {
    OURO_ASSIGN(const auto state, load_checkpoint(world, o, 4));
    OURO_TRY(agree(world, parts.load(task, state)));
    report.first_step = static_cast<int>(state.step);
  }
  train::Optimizer& outer_rule = *parts.server;
  train::LocalStepsOptions local{.inner_steps = o.local_steps, .delta = o.delta};
  if (o.weigh_by_ranks) local.aggregate.site_weights.assign(sizes.begin(), sizes.end());
  OURO_ASSIGN(auto outer, train::LocalSteps::create(groups, params, std::move(parts.server), local));

  const Share share(task, layout, o);
  const auto start = std::chrono::steady_clock::now();
  for (int t = report.first_step; t < end_of(o); ++t) {
    const double loss = task.gradients(params, share.of_step(t), 1);
    OURO_TRY(train::average_gradients(*groups.federation, params));
    OURO_TRY(parts.inner->step(params, {.lr = schedule.at(t)}));
    OURO_TRY(outer.step().status());
    OURO_ASSIGN(const auto all, measure(world, task.flat(params), loss, o.numerics));
    OURO_TRY(finite(o, t, all.loss));
    report.losses.push_back(all.loss);
    report.consensus.push_back(all.consensus);
    report.rates.push_back(schedule.at(t));
    if (o.on_step) o.on_step({t + 1, all.loss, all.consensus, schedule.at(t)});
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.rounds = outer.rounds() + report.first_step / o.local_steps;
  std::size_t across = c.rank() == 0 ? outer.traffic().across : 0;  // rank 0 is the only sender of its site
  const View bytes(&across, 1, DType::u64);
  OURO_TRY(broadcast(world, bytes, bytes, 0, kAuto));
  report.bytes_across = across;
  if (!o.save.empty()) {
    const auto state = parts.save(task, end_of(o), outer_rule);
    OURO_TRY(agree(world, state.status()));
    OURO_TRY(save_checkpoint(world, o, *state));
  }
  report.parameters = task.flat(params);
  OURO_TRY(train::aggregate(groups, params, local.aggregate));
  OURO_TRY(task.test(world, params, report));
  return report;
}

}  // namespace ouro::tools
