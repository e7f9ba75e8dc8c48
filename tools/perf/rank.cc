// The program of one rank, from the banner to the footer. Rank 0 prints to stdout; failures are printed to
// stderr. Used by main.cc.
#include "tools/perf/rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "tools/cli/files.h"
#include "tools/cli/output.h"
#include "tools/perf/aggregation.h"
#include "tools/perf/bound.h"
#include "tools/perf/compare.h"
#include "tools/perf/device.h"
#include "tools/perf/json_report.h"
#include "tools/perf/measure.h"
#include "tools/perf/probe.h"
#include "tools/perf/report.h"
#include "tools/perf/verdict.h"

namespace ouro::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// RankInfo as plain bytes, to be gathered.
struct WireInfo {
  int rank, group, pid, group_size, gpu;
  char host[64], device[192], bus[32];
};

Result<WireInfo> describe_self(const Options& o, const Context& context, int color, int group_size,
                               const std::string& bound) {
  WireInfo w{};
  w.rank = context.rank();
  w.group = color;
  w.pid = ::getpid();
  w.group_size = group_size;
  w.gpu = -1;
  (void)::gethostname(w.host, sizeof w.host - 1);
  std::string device = cpu_name();
  if (o.device) {
    if (context.device().kind == Device::Kind::host)
      return unsupported(fmt::format("--device cuda: rank {} has no GPU", w.rank));
    w.gpu = context.device().index;
    const auto properties = gpu::gpu().properties(w.gpu);
    if (!properties) return properties.status();
    device = describe(*properties);
    std::snprintf(w.bus, sizeof w.bus, "%s", properties->pci_bus_id.c_str());
  }
  std::snprintf(w.device, sizeof w.device, "%s%s", device.c_str(), bound.c_str());
  return w;
}

class RankProgram {
 public:
  RankProgram(const Options& o, const Split& split, Context& context)
      : options_(o),
        split_(split),
        context_(context),
        prints_(context.rank() == 0),
        bound_(o.bind, context.local_rank(), context.local_world_size()) {}

  Result<int> run() {
    OURO_TRY(prepare());
    report(banner(options_, ranks_, version(), start_time_));
    print(header(options_));
    OURO_TRY(run_table());
    return finish();
  }

  /// Writes the JSON file of a run that failed: the rows so far, and the reason.
  void record_failure(const Status& failure) const {
    if (json_file_.empty()) return;
    Summary summary = summarize(rows_, 0);
    summary.errors.push_back(failure.message());
    if (const Status s = tools::write_file(json_file_, document(summary)); !s)
      tools::complain("ouro-perf: rank {}: {}\n", context_.rank(), s.message());
  }

 private:
  Status prepare();
  Status prepare_bench();
  Status run_table();
  Status run_aggregations();
  Status add(Result<Row>);
  Status gather_usage();
  Result<int> finish();
  std::string document(const Summary& summary) const {
    return json_document(
        options_, rows_, summary,
        {start_time_, timestamp_now(), version(), ranks_, group_ != nullptr ? group_->size() : 1, copy_.gbs});
  }
  void print(const std::string& text) const {
    if (prints_ && options_.output != Output::json) tools::print_text(text);
  }
  void report(const std::string& words) const {
    if (prints_) say(options_, words);
  }

  const Options& options_;
  const Split& split_;
  Context& context_;
  const bool prints_;
  const Bound bound_;  ///< before any memory is touched
  Group own_group_;    ///< valid only if the ranks are split
  Group* group_ = nullptr;
  std::optional<Bench> bench_;
  std::optional<AggregationBench> aggregation_;  ///< used instead of the bench of a collective
  std::optional<Baseline> base_;                 ///< on rank 0, with --compare
  std::vector<RankInfo> ranks_;
  int least_group_size_ = 1;
  std::vector<Row> rows_;
  std::string start_time_ = timestamp_now(), json_file_, plot_file_;
  Bench::CopyRate copy_;
  double others_share_ = 0;
  const Clock::time_point begin_ = Clock::now();
  const double host_cpu_ = host_cpu_seconds(), own_cpu_ = process_cpu_seconds();
};

Status RankProgram::prepare() {
  OURO_TRY(bound_.status());
  if (prints_) {  // before any measuring, so that a directory that does not exist does not cost an hour
    for (const auto& [wanted, name] :
         {std::pair{&options_.json_file, &json_file_}, {&options_.plot_file, &plot_file_}}) {
      if (wanted->empty()) continue;
      auto reserved = tools::reserve_file(*wanted);
      if (!reserved) return reserved.status();
      *name = std::move(*reserved);
    }
  }
  if (prints_ && !options_.base_file.empty()) {
    auto base = Baseline::read(options_.base_file);
    if (!base) return base.status();
    OURO_TRY(base->check(options_.name()));
    base_ = std::move(*base);
  }
  Group& world = context_.world();
  group_ = &world;
  const int color = split_.color(context_.rank());
  if (split_.op != 0) {
    auto own = world.split(color, context_.rank());
    if (!own) return own.status();
    own_group_ = std::move(*own);
    group_ = &own_group_;
  }
  const auto self = describe_self(options_, context_, color, group_->size(), bound_.text());
  if (!self) return self.status();
  const auto all = collect(world, &*self);
  if (!all) return all.status();
  least_group_size_ = self->group_size;
  for (const WireInfo& w : *all) {
    ranks_.push_back({w.rank, w.group, w.pid, w.host, w.device, 0, w.gpu, w.bus});
    least_group_size_ = std::min(least_group_size_, w.group_size);
  }
  if (options_.root && *options_.root >= least_group_size_)
    return invalid(fmt::format("-r {}: there are only ranks 0 to {}", *options_.root, least_group_size_ - 1));
  return prepare_bench();
}

Status RankProgram::prepare_bench() {
  if (options_.aggregation) {
    auto made = AggregationBench::make(options_, context_);
    if (!made) return made.status();
    aggregation_ = std::move(*made);
    return {};
  }
  auto bench = Bench::make(options_, context_, context_.world(), *group_);
  if (!bench) return bench.status();
  bench_ = std::move(*bench);
  return {};
}

Status RankProgram::add(Result<Row> row) {
  if (!row) return row.status();
  print(format_row(options_, *row));
  rows_.push_back(std::move(*row));
  return {};
}

Status RankProgram::run_aggregations() {
  const AggregationOptions& a = *options_.aggregation;
  for (int cycle = 0; cycle < options_.cycles; ++cycle)
    for (const DType t : options_.dtypes)
      for (const std::size_t size : sizes(options_, size_of(t)))
        for (const train::Strategy strategy : a.strategies)
          for (const int streams : a.streams) OURO_TRY(add(aggregation_->row(size, t, strategy, streams)));
  return {};
}

Status RankProgram::run_table() {
  if (aggregation_) return run_aggregations();
  const KindInfo& k = info(options_.kind);
  const std::vector<OpKind> ops = k.reduces() ? options_.ops : std::vector{OpKind::sum};
  const int first_root = options_.root.value_or(0);
  const int last_root = options_.root || !k.rooted() ? first_root : least_group_size_ - 1;
  for (int cycle = 0; cycle < options_.cycles; ++cycle)
    for (const DType t : options_.dtypes)
      for (const OpKind op : ops) {
        // Occurs only with `all`: a single pair was checked at the start.
        if (k.reduces() && !applies(op, t)) continue;
        for (int root = first_root; root <= last_root; ++root)
          for (const std::size_t size : sizes(options_, size_of(t)))
            OURO_TRY(add(bench_->row(size, t, op, root)));
      }
  if (rows_.empty()) return invalid("no combination of type and operation applies");
  return {};
}

Status RankProgram::gather_usage() {
  struct Usage {
    double cpu, peak;
  } mine{process_cpu_seconds() - own_cpu_, peak_resident_bytes()};
  const double wall = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double host = host_cpu_seconds() - host_cpu_;
  const auto all = collect(context_.world(), &mine);
  if (!all) return all.status();
  double ours = 0;
  std::set<int> counted;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].peak_bytes = (*all)[r].peak;
    if (ranks_[r].host == ranks_[0].host && counted.insert(ranks_[r].pid).second) ours += (*all)[r].cpu;
  }
  if (wall > 0) others_share_ = std::clamp((host - ours) / wall / host_cpus(), 0.0, 1.0);
  return {};
}

Result<int> RankProgram::finish() {
  OURO_TRY(gather_usage());
  if (options_.verdict || options_.limit) {
    const auto copy = bench_->copy_bandwidth();
    if (!copy) return copy.status();
    copy_ = *copy;
  }
  const Summary summary = summarize(rows_, options_.min_busbw);
  if (!prints_) return summary.exit_code();

  std::set<int> colors;
  for (const RankInfo& r : ranks_) colors.insert(r.group);
  report(footer(options_, summary));
  if (base_) report(base_->compare(rows_, least_group_size_));
  if (options_.memory_report) report(memory_lines(ranks_));
  const Ceiling ceiling{copy_.gbs,   copy_.bytes,   group_->size(), static_cast<int>(colors.size()),
                        host_cpus(), others_share_, copy_.gpus};
  if (options_.limit) report(limit_lines(options_, rows_, ceiling));
  if (options_.verdict) report(verdict(options_, rows_, summary, ceiling));
  const std::string json = document(summary);
  if (options_.output == Output::json) tools::print_text(json);
  if (!json_file_.empty()) {
    OURO_TRY(tools::write_file(json_file_, json));
    report(fmt::format("# JSON: {}\n", json_file_));
  }
  if (!plot_file_.empty()) {
    OURO_TRY(tools::write_file(plot_file_, plot_svg(options_, rows_)));
    report(fmt::format("# Plot: {}\n", plot_file_));
  }
  return summary.exit_code();
}

}  // namespace

void say(const Options& o, const std::string& words) {
  if (o.output == Output::csv)
    tools::complain_text(words);
  else if (o.output != Output::json)
    tools::print_text(words);
}

int run_rank(const Options& o, const Split& split, Context& context) {
  RankProgram program(o, split, context);
  const Result<int> code = program.run();
  if (!code) {
    tools::complain("ouro-perf: rank {}: {}\n", context.rank(), code.status().message());
    program.record_failure(code.status());
    context.world().abort("ouro-perf: rank " + std::to_string(context.rank()) + " gave up");
    return 1;
  }
  if (const Status s = context.close(); !s) {
    tools::complain("ouro-perf: rank {}: {}\n", context.rank(), s.message());
    return 1;
  }
  return *code;
}

}  // namespace ouro::perf
