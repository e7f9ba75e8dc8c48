// A model of several layers, its average over the sites, and the expected result. See aggregation.h.
#include "tools/perf/aggregation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tools/perf/check.h"
#include "tools/perf/data.h"
#include "tools/perf/measure.h"
#include "tools/perf/report.h"

namespace ouro::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes from the start of one layer to that of the next. The guard between them is a cache line of its own.
std::size_t stride(std::size_t bytes) { return (bytes + kGuard - 1) / kGuard * kGuard + kGuard; }

}  // namespace

Result<AggregationBench> AggregationBench::make(const Options& o, Context& context) {
  AggregationBench b(o, context.world());
  const AggregationOptions& a = *o.aggregation;
  auto sites = sites_of(a, context.world_size());
  if (!sites) return sites.status();
  const auto layout =
      train::ParallelLayout::make({.rank = context.rank(),
                                   .world_size = context.world_size(),
                                   .federations = std::move(*sites),
                                   .hsdp = a.hsdp,
                                   .streams = *std::max_element(a.streams.begin(), a.streams.end()),
                                   .groups = a.groups});
  if (!layout) return layout.status();
  auto groups = train::create_groups(context, *layout, {.deadline = std::chrono::seconds(o.timeout_s)});
  if (!groups) return groups.status();
  b.groups_ = std::move(*groups);
  if (o.device) b.device_ = context.device();
  if (o.device && b.device_.kind == Device::Kind::host)
    return unsupported(fmt::format("--device cuda: rank {} has no GPU", context.rank()));
  auto mover = Mover::make(b.device_);
  if (!mover) return mover.status();
  b.mover_ = std::move(*mover);
  auto memory = Buffer::make(context, o.max_bytes + static_cast<std::size_t>(a.layers) * 2 * kGuard,
                             o.registered, b.device_);
  if (!memory) return memory.status();
  b.memory_ = std::move(*memory);
  return b;
}

std::span<const train::Param> AggregationBench::cut(std::size_t size, DType t) {
  dtype_ = t;
  params_.clear();
  std::size_t at = 0;
  for (const std::size_t count : layer_counts(size / size_of(t), options_->aggregation->layers)) {
    const View layer(memory_.at(at), count, t, device_);
    params_.push_back({.name = fmt::format("layer{}", params_.size()), .value = layer, .grad = {}});
    at += stride(layer.bytes());
  }
  return params_;
}

/// The senders of a shard get the inputs of an all-reduce over the sites. Ranks whose values must not be
/// used get NaN.
Result<std::size_t> AggregationBench::check_once(const std::function<Status()>& average) {
  const train::ParallelLayout& l = groups_.layout;
  constexpr OpKind kMean = OpKind::avg;
  const auto shard = static_cast<std::uint64_t>(l.replica ? l.replica->local_rank : l.federation->local_rank);
  const std::uint64_t seed = (++seed_ << 10) + shard;
  const Tile mine = Tile::input(dtype_, &kMean, l.federation->rank, sites(), seed),
             mean = Tile::reduced(dtype_, kMean, sites(), seed);
  const bool is_heard = l.is_sender || l.federated_group.size() > 1;

  std::size_t bytes = 0;
  for (const train::Param& p : params_) bytes += stride(p.value.bytes());
  std::vector<std::byte> image(bytes, static_cast<std::byte>(kGarbage));
  std::size_t at = 0, element = 0;
  for (const train::Param& p : params_) {
    if (is_heard) mine.fill(image.data() + at, p.value.count, element);
    at += stride(p.value.bytes()), element += p.value.count;
  }
  OURO_TRY(mover_.write(memory_.at(0), image.data(), bytes));
  OURO_TRY(average());
  OURO_TRY(mover_.read(image.data(), memory_.at(0), bytes));

  std::size_t wrong = 0;
  at = element = 0;
  for (const train::Param& p : params_) {
    wrong += mean.wrong(image.data() + at, p.value.count, element);
    const std::byte *guard = image.data() + at + p.value.bytes(),
                    *end = image.data() + at + stride(p.value.bytes());
    wrong += static_cast<std::size_t>(end - guard - std::count(guard, end, static_cast<std::byte>(kGarbage)));
    at += stride(p.value.bytes()), element += p.value.count;
  }
  return wrong;
}

Result<double> AggregationBench::time_block(const std::function<Status()>& average,
                                            std::vector<double>& samples) {
  OURO_TRY(mover_.set(memory_.at(0), 0, memory_.bytes()));
  for (int i = 0; i < options_->warmup; ++i) OURO_TRY(average());
  OURO_TRY(barrier(*world_, kAuto));
  const auto begin = Clock::now();
  auto last = begin;
  for (int i = 0; i < options_->iters; ++i) {
    OURO_TRY(average());
    if (!options_->iteration_stats) continue;
    const auto now = Clock::now();
    samples.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / options_->iters;
}

Result<Half> AggregationBench::half(std::size_t bytes, const std::function<Status()>& average) {
  OwnFigures mine;
  const auto check = [&](int times) -> Status {
    for (int i = 0; i < times; ++i) {
      const auto wrong = check_once(average);
      if (!wrong) return wrong.status();
      mine.wrong += *wrong;
    }
    return {};
  };
  OURO_TRY(check(options_->check));
  const auto seconds = time_block(average, mine.samples);
  if (!seconds) return seconds.status();
  mine.seconds = *seconds;
  OURO_TRY(check(options_->check > 0 ? 1 : 0));  // checks that results are still right after many calls
  // Across sites, the aggregation is an all-reduce of the senders.
  return half_of_all(*options_, *world_, Kind::all_reduce, bytes, sites(), mine);
}

Result<Row> AggregationBench::row(std::size_t size, DType t, train::Strategy strategy, int streams) {
  cut(size, t);
  Row r;
  for (const train::Param& p : params_) r.count += p.value.count;
  r.size = r.count * size_of(t);
  r.type = name(t);
  r.redop = name(OpKind::avg);
  r.strategy = train::name(strategy);
  r.streams = streams;
  const train::AggregateOptions options{.strategy = strategy, .streams = streams};
  auto plan = train::plan_aggregation(groups_, params_, options);
  if (!plan) return plan.status();
  const auto planned = half(r.size, [&] { return plan->run(); });
  if (!planned) return planned.status();
  r.out_of_place = *planned;
  const auto at_once = half(r.size, [&] { return train::aggregate(groups_, params_, options); });
  if (!at_once) return at_once.status();
  r.in_place = *at_once;
  if (options_->timestamps) r.timestamp = timestamp_now();
  return r;
}

}  // namespace ouro::perf
