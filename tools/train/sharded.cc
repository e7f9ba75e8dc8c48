// The loop of data-parallel training: gradients bucket by bucket, each rank updates all or its shard.
// See sharded.h.
#include "tools/train/sharded.h"

#include <fmt/format.h>

#include <chrono>

#include "ouro/train/layout.hpp"
#include "ouro/train/shard.hpp"
#include "tools/train/bridge.h"
#include "tools/train/checkpoint.h"

namespace ouro::tools {
namespace {

using train::ShardedTrainer;

/// The shard and replica groups. ddp: every rank is a replica; fsdp: one shard group, or replicas of
/// shard groups.
Result<train::LayoutGroups> make_groups(Context& c, const TrainOptions& o) {
  train::LayoutOptions layout{.rank = c.rank(), .world_size = c.world_size()};
  if (o.strategy == Strategy::ddp) layout.hsdp = 1;
  if (o.shards > 0) {
    if (c.world_size() % o.shards != 0)
      return invalid(fmt::format("--shards {}: does not divide the {} ranks", o.shards, c.world_size()));
    layout.hsdp = o.shards;
  }
  OURO_ASSIGN(const auto made, train::ParallelLayout::make(layout));
  return create_groups(c, made, {.deadline = Milliseconds(0), .numerics = o.numerics});
}

Result<ShardedTrainer> make_trainer(train::LayoutGroups& groups, const TrainOptions& o, Task& task,
                                    std::vector<train::Param> params) {
  train::ShardOptions options{.optimizer = optimizer_of(o)};
  options.schedule = [o](auto) { return schedule_of(o); };
  options.bucket_mb = o.bucket_mb;
  options.clip_norm = o.clip_norm;
  options.order = task.network().ready_order();
  options.numerics = o.numerics;
  if (o.strategy == Strategy::ddp)
    return ShardedTrainer::data_parallel(*groups.replica, std::move(params), options);
  if (o.shards > 0) return ShardedTrainer::create(*groups.shard, *groups.replica, std::move(params), options);
  return ShardedTrainer::create(*groups.shard, std::move(params), options);
}

/// `scale`: weight of the mean over this rank's samples in the mean over all ranks.
Result<double> step_once(ShardedTrainer& t, Task& task, Bridge& bridge,
                         std::span<const std::uint32_t> samples, double scale) {
  OURO_TRY(t.begin_step());
  OURO_ASSIGN(const auto here, bridge.down(t.params()));
  const double loss = task.gradients(here, samples, scale);
  for (const int p : task.network().ready_order()) {
    OURO_TRY(bridge.up(t.params(), static_cast<std::size_t>(p)));
    OURO_TRY(t.grad_ready(p, bridge.stream()));
  }
  OURO_TRY(t.end_backward(bridge.stream()));
  return loss * scale;
}

}  // namespace

std::vector<std::int64_t> numbers_of_step(int step, int batch, int rank, int ranks) {
  std::vector<std::int64_t> numbers;
  for (int k = rank; k < batch; k += ranks) numbers.push_back(std::int64_t{step} * batch + k);
  return numbers;
}

Result<TrainReport> train_sharded(Context& c, TrainOptions options) {
  OURO_ASSIGN(const auto settled, settle(std::move(options), c.world()));
  const TrainOptions& o = settled;
  Group& world = c.world();
  OURO_ASSIGN(auto groups, make_groups(c, o));
  OURO_ASSIGN(const auto schedule, schedule_of(o));
  OURO_ASSIGN(auto task, Task::make(c, o));
  OURO_ASSIGN(auto made, Bridge::make(c, task, o.device));
  Bridge& bridge = *made;
  OURO_ASSIGN(auto trainer, make_trainer(groups, o, task, bridge.params()));
  ShardedTrainer& t = trainer;
  OURO_TRY(resume_from_file(world, o, t, task));

  TrainReport report{.options = o, .ranks = c.world_size(), .first_step = static_cast<int>(t.steps())};
  const Pool pool(task.network().samples(), o.seed, 0, 1);
  const auto start = std::chrono::steady_clock::now();
  for (int step = report.first_step; step < end_of(o); ++step) {
    std::vector<std::uint32_t> samples;
    for (const std::int64_t k : numbers_of_step(step, *o.batch, c.rank(), c.world_size()))
      samples.push_back(pool[k]);
    const double scale = static_cast<double>(samples.size()) * static_cast<double>(c.world_size()) /
                         static_cast<double>(*o.batch);
    OURO_ASSIGN(auto loss, step_once(t, task, bridge, samples, scale));
    const View mean(&loss, 1, DType::f64);
    OURO_TRY(all_reduce(world, mean, mean, ReduceOp::avg, {.numerics = o.numerics}));
    OURO_TRY(finite(o, step, loss));
    report.losses.push_back(loss);
    report.rates.push_back(schedule.at(step));
    if (o.on_step) o.on_step({step + 1, loss, 0, schedule.at(step)});
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  OURO_TRY(save_to_file(world, o, t, task));
  for (const train::BucketLayout& b : t.buckets()) report.blocks.push_back(b.length);
  OURO_ASSIGN(const auto last, bridge.down(t.params()));
  OURO_TRY(task.test(world, last, report));
  OURO_TRY(t.close());
  return report;
}

}  // namespace ouro::tools
