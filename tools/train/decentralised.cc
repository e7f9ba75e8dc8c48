// The loop of decentralised training: gradients of this rank's own copy, overlapped with the exchange.
// See decentralised.h.
#include "tools/train/decentralised.h"

#include <chrono>
#include <cmath>

#include "tools/train/checkpoint.h"

namespace ouro::tools {
namespace {

Result<double> step_once(train::GossipTrainer& t, Task& task, const std::vector<int>& order,
                         std::span<const std::uint32_t> samples) {
  OURO_TRY(t.begin_step());
  const double loss = task.gradients(t.params(), samples, 1);
  for (const int p : order) OURO_TRY(t.grad_ready(p));
  OURO_TRY(t.end_backward());
  return loss;
}

Status average(Context& c, train::GossipTrainer& t, Task& task, TrainReport& report) {
  OURO_ASSIGN(auto mean, t.global_average({.distance = true}));
  report.distance = mean.distance;
  const std::vector<double> x = task.flat(t.params());
  double squares = 0;
  for (const double v : x) squares += v * v;
  report.final_norm = std::sqrt(squares);
  OURO_TRY(task.test(c.world(), t.params(), report));
  return mean.revert();
}

train::GossipOptions options_of(const TrainOptions& o, train::Topology topology) {
  train::GossipOptions g{.topology = std::move(topology), .optimizer = optimizer_of(o)};
  g.schedule = [o](auto) { return schedule_of(o); };
  g.bucket_mb = o.bucket_mb;
  g.clip_norm = o.clip_norm;
  g.order = o.order;
  return g;
}

}  // namespace

Result<TrainReport> train_decentralised(Context& c, TrainOptions options) {
  options.strategy = Strategy::decentralised;
  OURO_ASSIGN(const auto settled, settle(std::move(options), c.world()));
  const TrainOptions& o = settled;
  Group& world = c.world();
  const int n = world.size();
  OURO_ASSIGN(auto topology, train::Topology::make(o.topology, n, o.topology_options));
  OURO_ASSIGN(const auto schedule, schedule_of(o));
  OURO_ASSIGN(auto task, Task::make(c, o));
  OURO_ASSIGN(auto made,
              train::GossipTrainer::create(world, task.params(), task.buffers(), options_of(o, topology)));
  train::GossipTrainer& t = made;
  OURO_TRY(resume_from_file(world, o, t, task));
  if (o.adaptive) OURO_TRY(t.set_adaptive_factor(*o.adaptive));

  TrainReport report{.options = o, .ranks = n, .first_step = static_cast<int>(t.steps())};
  const Pool pool(task.network().samples(), o.seed, world.rank(), n);
  const std::vector<int> order = task.network().ready_order();
  std::vector<std::uint32_t> samples(static_cast<std::size_t>((*o.batch + n - 1) / n));
  const auto start = std::chrono::steady_clock::now();
  for (int step = report.first_step; step < end_of(o); ++step) {
    const auto first = std::int64_t{step} * static_cast<std::int64_t>(samples.size());
    for (std::size_t k = 0; k < samples.size(); ++k) samples[k] = pool[first + static_cast<std::int64_t>(k)];
    OURO_ASSIGN(const auto loss, step_once(t, task, order, samples));
    OURO_ASSIGN(const auto all, measure(world, task.flat(t.params()), loss, o.numerics));
    OURO_TRY(finite(o, step, all.loss));
    report.losses.push_back(all.loss);
    report.consensus.push_back(all.consensus);
    report.rates.push_back(schedule.at(step));
    if (o.on_step) o.on_step({step + 1, all.loss, all.consensus, schedule.at(step)});
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  OURO_TRY(save_to_file(world, o, t, task));
  for (const train::BucketLayout& b : t.buckets()) report.blocks.push_back(b.length);
  OURO_TRY(average(c, t, task, report));
  OURO_TRY(t.close());
  return report;
}

}  // namespace ouro::tools
