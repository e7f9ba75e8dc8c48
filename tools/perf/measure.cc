// The measuring loop: prepared inputs, checked runs, one timed block, results of all ranks.
// Used by the rank program.
#include "tools/perf/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "tools/perf/check.h"
#include "tools/perf/report.h"

namespace ouro::perf {
namespace {

constexpr int kCopyRounds = 3;
constexpr double kCopySeconds = 0.02;  // minimum duration of one round of the copy probe

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

gpu::Stream gpu_stream(const Stream& s) { return {s.device().index, s.cuda_handle()}; }

}  // namespace

Result<Bench> Bench::make(const Options& o, Context& context, Group& world, Group& group) {
  Bench b(o, context, world, group);
  if (o.device) b.device_ = context.device();
  if (o.device && b.device_.kind == Device::Kind::host)
    return unsupported(fmt::format("--device cuda: rank {} has no GPU", world.rank()));
  std::size_t widest = 1;
  for (const DType t : o.dtypes) widest = std::max(widest, size_of(t));
  const std::size_t bytes = o.max_bytes + o.unalign * widest + kGuard;
  for (Buffer* buffer : {&b.send_, &b.recv_}) {
    auto made = Buffer::make(context, bytes, o.registered, b.device_);
    if (!made) return made.status();
    *buffer = std::move(*made);
  }
  auto mover = Mover::make(b.device_);
  if (!mover) return mover.status();
  b.mover_ = std::move(*mover);
  if (o.device || o.blocking == Blocking::stream || o.blocking == Blocking::stream_wait) {
    auto stream = o.null_stream ? Stream::cuda(nullptr, b.device_.index)
                                : Stream::create(b.device_, Priority::normal, "ouro-perf");
    if (!stream) return stream.status();
    b.stream_ = std::move(*stream);
  }
  if (marks_samples(o)) {
    auto clock = EventClock::make(gpu_stream(b.stream_), samples_of(o) + 1);
    if (!clock) return clock.status();
    b.clock_ = std::move(*clock);
  }
  return b;
}

Call Bench::make_call(std::size_t size, DType t, OpKind op, int root, bool in_place) const {
  Call c;
  c.kind = options_->kind;
  c.dtype = t;
  c.op = reduction_of(op, group_->rank());
  c.root = root;
  c.device = device_;
  c.shape = layout(c.kind, size, size_of(t), group_->size());
  const std::size_t shift = options_->unalign * size_of(t);
  c.in = send_.at(shift);
  c.out = recv_.at(shift);
  if (!in_place) return c;
  // Both pointers of a call in place are in the receive buffer; a rank that is not the root keeps the one
  // buffer that it uses.
  const std::size_t own = static_cast<std::size_t>(group_->rank()) * c.shape.count * size_of(t);
  const bool is_root = group_->rank() == root;
  switch (c.kind) {
    case Kind::all_gather:
      c.in = recv_.at(shift + own);
      break;
    case Kind::reduce_scatter:
      c.in = recv_.at(shift), c.out = recv_.at(shift + own);
      break;
    case Kind::gather:
      if (is_root) c.in = recv_.at(shift + own);
      break;
    case Kind::scatter:
      if (is_root) c.in = recv_.at(shift), c.out = recv_.at(shift + own);
      break;
    default:
      c.in = c.out;
      break;
  }
  return c;
}

Status Bench::drain() { return stream_.valid() ? stream_.synchronize() : Status(); }

Status Bench::step(const Call& c, int times) {
  OURO_TRY(issue(*group_, c, times, stream_));
  switch (options_->blocking) {
    case Blocking::barrier:
      OURO_TRY(drain());
      return barrier(*group_);
    case Blocking::stream_wait:
      return drain();
    default:
      return {};
  }
}

Result<std::unique_ptr<CapturedGraph>> Bench::captured(const Call& c, int times, int aggregate) {
  return CapturedGraph::capture(gpu_stream(stream_), [&]() -> Status {
    for (int i = 0; i < times; ++i) OURO_TRY(issue(*group_, c, aggregate, stream_));
    return {};
  });
}

Result<std::size_t> Bench::check_once(const Call& c, OpKind op, bool in_place, bool in_graph) {
  std::byte* const region = recv_.at(options_->unalign * size_of(c.dtype));
  const auto perform = [&]() -> Status {
    if (!in_graph) {
      OURO_TRY(issue(*group_, c, 1, stream_));
      return drain();
    }
    const auto graph = captured(c, 1, 1);
    if (!graph) return graph.status();
    OURO_TRY((*graph)->launch());
    return drain();
  };
  return check_call(*group_, c, op, in_place, region, ++seed_, perform, mover_);
}

Result<double> Bench::timed(const std::function<Status()>& f) {
  const auto begin = Clock::now();
  if (clock_) OURO_TRY(clock_->mark(0));
  OURO_TRY(f());
  const double called = seconds_since(begin);
  OURO_TRY(drain());
  const double total = seconds_since(begin);
  OURO_TRY(group_->status());
  if (options_->events) return clock_->seconds(0, samples_of(*options_));
  return options_->cpu_time ? called : total;
}

Result<int> Bench::warm_up(const Call& c) {
  const Options& o = *options_;
  // Everything that is made on first use must exist before a capture.
  const int least = std::max(o.warmup, o.graph > 0 ? 1 : 0);
  if (!o.distribution) {
    for (int i = 0; i < least; ++i) OURO_TRY(step(c, o.aggregate));
    OURO_TRY(drain());
    return least;
  }
  WarmUp rule(least);
  const auto begin = Clock::now();
  while (const int calls = rule.next()) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) OURO_TRY(step(c, o.aggregate));
    OURO_TRY(drain());
    const double mine[] = {seconds_since(start) * 1e6 / calls, seconds_since(begin)};
    const auto all = collect(*world_, mine, 2);
    if (!all) return all.status();
    double us = 0, elapsed = 0;
    for (std::size_t i = 0; i < all->size(); i += 2)
      us += (*all)[i], elapsed = std::max(elapsed, (*all)[i + 1]);
    rule.add(us / world_->size(), elapsed);
  }
  return rule.calls();
}

Status Bench::repeat(const Call& c, CapturedGraph* graph, std::vector<double>& samples) {
  const Options& o = *options_;
  const int all = graph ? o.graph : o.iters, most = calls_per_sample(o);
  auto last = Clock::now();
  for (int done = 0; done < all; done += most) {
    for (int i = done; i < std::min(all, done + most); ++i)
      OURO_TRY(graph ? graph->launch() : step(c, o.aggregate));
    if (clock_) OURO_TRY(clock_->mark(static_cast<int>(samples.size()) + 1));
    if (waits_for_samples(o)) OURO_TRY(drain());
    const auto now = Clock::now();
    samples.push_back(std::chrono::duration<double>(now - last).count());
    last = now;
  }
  return {};
}

Status Bench::time_block(const Call& c, OwnFigures& mine) {
  // Zeros, so that repeated sums in place do not become infinite.
  for (const Buffer* b : {&send_, &recv_}) OURO_TRY(mover_.set(b->at(0), 0, b->bytes()));
  const Options& o = *options_;
  OURO_ASSIGN(mine.warmup, warm_up(c));
  std::unique_ptr<CapturedGraph> graph;
  if (o.graph > 0) {
    OURO_ASSIGN(graph, captured(c, o.iters, o.aggregate));
    OURO_TRY(graph->launch());  // the first launch uploads it to the device
    OURO_TRY(drain());
  }
  OURO_TRY(barrier(*world_, kAuto));

  const auto maps = [&] { return context_->device_memory().imports().mappings(); };
  const std::uint64_t mapped = maps();
  OURO_ASSIGN(const double seconds, timed([&] { return repeat(c, graph.get(), mine.samples); }));
  mine.maps = maps() - mapped;
  const double unit = (graph ? o.iters : 1.0) * o.aggregate;  // calls of one launch or iteration
  const int all = graph ? o.graph : o.iters, most = calls_per_sample(o);
  mine.seconds = seconds / all / unit;
  for (int i = 0; i < static_cast<int>(mine.samples.size()); ++i) {
    double& sample = mine.samples[static_cast<std::size_t>(i)];
    if (clock_) {
      OURO_ASSIGN(sample, clock_->seconds(i, i + 1));
    }
    sample /= std::min(most, all - i * most) * unit;
  }
  return {};
}

Result<Half> half_of_all(const Options& o, Group& world, Kind kind, std::size_t bytes, int ranks,
                         const OwnFigures& own) {
  struct Mine {
    double seconds;
    std::size_t wrong;
    std::uint64_t maps;
  } mine{own.seconds, own.wrong, own.maps};
  const auto all = collect(world, &mine);
  if (!all) return all.status();
  std::vector<double> times;
  std::size_t wrong = 0;
  std::uint64_t maps = 0;
  for (const Mine& m : *all) times.push_back(m.seconds), wrong += m.wrong, maps += m.maps;

  Half h = half_of(kind, bytes, ranks, combine(times, o.average));
  if (o.check > 0) h.wrong = wrong;
  if (!o.iteration_stats && !o.distribution) return h;
  const std::size_t count = own.samples.size();
  const auto by_rank = collect(world, own.samples.data(), count);
  if (!by_rank) return by_rank.status();
  std::vector<double> combined;
  for (std::size_t i = static_cast<std::size_t>(o.skip_samples); i < count; ++i) {
    for (std::size_t r = 0; r < times.size(); ++r) times[r] = (*by_rank)[r * count + i] * 1e6;
    combined.push_back(combine(times, o.average));
  }
  if (o.distribution) {
    h.distribution = distribution_of(combined);
    h.distribution->maps = maps;
    h.distribution->warmup = own.warmup;
  }
  if (o.iteration_stats) h.samples = summarize(std::move(combined));
  return h;
}

Result<Half> Bench::half(const Call& c, OpKind op, bool in_place) {
  const Options& o = *options_;
  OwnFigures mine;
  const auto check = [&](int times, bool in_graph) -> Status {
    for (int i = 0; i < times; ++i) {
      const auto bad = check_once(c, op, in_place, in_graph);
      if (!bad) return bad.status();
      mine.wrong += *bad;
    }
    return {};
  };
  OURO_TRY(check(o.check, false));
  OURO_TRY(time_block(c, mine));
  OURO_TRY(check(o.check > 0 ? 1 : 0, o.graph > 0));  // checks that results are still right after many calls
  return half_of_all(o, *world_, c.kind, c.shape.bytes, group_->size(), mine);
}

Result<std::string> Bench::explanation(const Call& call, const Call* in_place) const {
  if (info(call.kind).collective == Collective::none)
    return std::string("messages to the next rank, from the previous one");
  auto text = group_->impl()->explain(operation_of(call));
  if (!text) return text;
  if (in_place) {
    const auto other = group_->impl()->explain(operation_of(*in_place));
    if (!other) return other;
    if (*other != *text) *text = fmt::format("out of place: {}. In place: {}", *text, *other);
  }
  return *text + (options_->registered ? "; buffers: registered" : "; buffers: private");
}

Result<Row> Bench::row(std::size_t size, DType t, OpKind op, int root) {
  const KindInfo& k = info(options_->kind);
  Row r;
  const Call call = make_call(size, t, op, root, false);
  r.size = call.shape.bytes;
  r.count = call.shape.count;
  r.type = name(t);
  if (k.reduces()) r.redop = name(op);
  if (k.rooted()) r.root = root;
  auto out_of_place = half(call, op, false);
  if (!out_of_place) return out_of_place.status();
  r.out_of_place = *out_of_place;
  const Call in_place_call = make_call(size, t, op, root, true);
  if (has_in_place(k.kind)) {
    auto in_place = half(in_place_call, op, true);
    if (!in_place) return in_place.status();
    r.in_place = *in_place;
  }
  if (options_->timestamps) r.timestamp = timestamp_now();
  if (options_->explain) {
    auto text = explanation(call, has_in_place(k.kind) ? &in_place_call : nullptr);
    if (!text) return text.status();
    r.explain = std::move(*text);
  }
  return r;
}

Result<Bench::CopyRate> Bench::device_copy_bandwidth() {
  struct Mine {
    std::array<unsigned char, 16> uuid;
    double gbs;
    std::size_t bytes;
  } mine{};
  const auto properties = gpu::gpu().properties(device_.index);
  if (!properties) return properties.status();
  mine.uuid = properties->uuid;
  const auto seats = collect(*world_, &mine);
  if (!seats) return seats.status();
  for (int r = 0; r < world_->size(); ++r) {
    const auto first = std::find_if(seats->begin(), seats->end(), [&](const Mine& m) {
      return m.uuid == (*seats)[static_cast<std::size_t>(r)].uuid;
    });
    if (r == world_->rank() && first - seats->begin() == r) {
      const auto copy = measure_copy(device_.index);
      if (!copy) return copy.status();
      mine.gbs = copy->gbs, mine.bytes = copy->bytes;
    }
    OURO_TRY(barrier(*world_, kAuto));
  }
  const auto all = collect(*world_, &mine);
  if (!all) return all.status();
  CopyRate sum;
  for (const Mine& m : *all) {
    if (m.bytes == 0) continue;
    sum.gbs += m.gbs, ++sum.gpus;
    sum.bytes = sum.gpus == 1 ? m.bytes : std::min(sum.bytes, m.bytes);
  }
  return sum;
}

Result<Bench::CopyRate> Bench::copy_bandwidth() {
  if (options_->device) return device_copy_bandwidth();
  const std::size_t bytes = std::max<std::size_t>(options_->max_bytes, kGuard);
  double best = 0;
  for (int round = 0; round < kCopyRounds; ++round) {
    OURO_TRY(barrier(*world_, kAuto));
    const auto begin = Clock::now();
    double elapsed = 0;
    std::size_t copies = 0;
    while (elapsed < kCopySeconds) {
      std::memcpy(recv_.at(0), send_.at(0),
                  bytes);  // the C library uses non-temporal stores where these are faster
      ++copies;
      elapsed = seconds_since(begin);
    }
    const double mine = 2 * static_cast<double>(bytes * copies) / elapsed / 1e9;
    const auto all = collect(*world_, &mine);
    if (!all) return all.status();
    double sum = 0;
    for (const double x : *all) sum += x;
    best = std::max(best, sum);
  }
  return CopyRate{best, options_->max_bytes, 0};
}

}  // namespace ouro::perf
