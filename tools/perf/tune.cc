// The tuner's program: checks preconditions, reads the old file and writes the new one. Rank 0 prints and
// writes. See tune.h.
#include "tools/perf/tune.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "runtime/core/env.h"
#include "tools/cli/files.h"
#include "tools/cli/output.h"
#include "tools/perf/bound.h"
#include "tools/perf/measure.h"
#include "tools/perf/probe.h"
#include "tools/perf/tune_bench.h"

namespace ouro::perf {
namespace {

/// OURO_TUNE must not be set: a file is measured against the built-in rules, not against itself.
Status check_environment() {
  const auto algorithm = env::text("OURO_ALGO"), select = env::text("OURO_SELECT"),
             tune = env::text("OURO_TUNE");
  const auto stream = env::integer("OURO_STREAM_BYTES");
  const auto set = [](const auto& text) { return text && !text->value_or("").empty(); };
  for (const auto& [name, is_set] : {std::pair{"OURO_ALGO", set(algorithm)},
                                     {"OURO_SELECT", set(select)},
                                     {"OURO_TUNE", set(tune)},
                                     {"OURO_STREAM_BYTES", stream && stream->has_value()}})
    if (is_set) return invalid(fmt::format("--tune compares with the built-in table: unset {}", name));
  return {};
}

class Tuner {
 public:
  Tuner(const Options& o, const Split& split, Context& context)
      : options_(o),
        split_(split),
        outer_(context),
        bound_(o.bind, context.local_rank(), context.local_world_size()),
        bench_(o, context) {}
  ~Tuner() {
    if (!draft_.empty()) (void)::unlink(draft_.c_str());
  }
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  Result<int> run();

 private:
  Status check_terms() const;
  Status prepare();
  Status measure();
  Status write();

  const Options& options_;
  const Split& split_;
  Context& outer_;
  const Bound bound_;
  TuneBench bench_;
  std::string machine_, draft_;  ///< path of the draft file, until this rank has renamed the file
  rt::Rules rules_, old_;
};

Status Tuner::check_terms() const {
  if (bench_.size() < 2) return invalid("--tune: one rank has nothing to choose; give --ranks N or -t N");
  if (outer_.local_world_size() != bench_.size())
    return unsupported(fmt::format("--tune measures one node, and {} of {} ranks are on this one",
                                   outer_.local_world_size(), bench_.size()));
  if (split_.op != 0) return invalid("--tune wants all ranks in one group: unset NCCL_TESTS_SPLIT");
  return check_environment();
}

Status Tuner::prepare() {
  OURO_TRY(bound_.status());
  machine_ = fmt::format("{}, {} processors", cpu_name(), host_cpus());
  // If something is wrong with the file, rank 0 gives up and the others notice that.
  if (outer_.rank() != 0) return {};
  if (tools::is_special(options_.tune_file))
    return tools::try_file(options_.tune_file);  // there is nothing to merge with
  auto old = existing_rules(options_.tune_file, machine_);
  if (!old) return old.status();
  old_ = std::move(*old);
  auto draft = tools::reserve_file(options_.tune_file + ".new");  // reserved before any measuring
  if (!draft) return draft.status();
  draft_ = std::move(*draft);
  return {};
}

Status Tuner::measure() {
  rules_.stream_bytes = old_.stream_bytes;
  if (!options_.tune_only || *options_.tune_only == Kind::all_reduce) {
    const auto bytes = bench_.calibrate(old_.stream_bytes);
    if (!bytes) return bytes.status();
    rules_.stream_bytes = *bytes;
  }
  const auto threshold = collect(outer_.world(), &rules_.stream_bytes);  // only rank 0 has read the file
  if (!threshold) return threshold.status();
  OURO_TRY(bench_.enter(threshold->front()));
  const auto add = [this](Result<std::vector<rt::Rule>> rows) -> Status {
    if (rows) rules_.rows.insert(rules_.rows.end(), rows->begin(), rows->end());
    return rows.status();
  };
  for (const KindInfo& k : all_kinds())
    if (k.collective != Collective::none && (!options_.tune_only || k.kind == *options_.tune_only))
      OURO_TRY(add(bench_.tune(k.kind)));
  return options_.tune_only ? Status() : add(bench_.tune_barrier());
}

Status Tuner::write() {
  const std::string& file = options_.tune_file;
  std::vector<rt::Rule> merged = merge(rules_.rows, old_.rows);
  bench_.print("# Written to {} for {} ranks ({} cores), {} rows, before {} that were there:\n", file,
               bench_.size(), bench_.enough_cores() ? "enough" : "fewer", rules_.rows.size(),
               merged.size() - rules_.rows.size());
  for (const rt::Rule& row : rules_.rows) bench_.print("#   {}\n", rt::to_text(row));
  rules_.rows = std::move(merged);
  const bool special = draft_.empty();
  OURO_TRY(tools::write_file(special ? file : draft_, rt::to_json(rules_, machine_)));
  if (!special && std::rename(draft_.c_str(), file.c_str()) != 0)
    return Status(Reason::resource,
                  fmt::format("cannot rename {} to {}: {}", draft_, file, std::strerror(errno)));
  draft_.clear();
  bench_.print("# Use it: OURO_TUNE={}\n", file);
  return {};
}

Result<int> Tuner::run() {
  OURO_TRY(check_terms());
  OURO_TRY(prepare());
  bench_.print("# ouro version {}, tuning for {} ranks on {}\n", version(), bench_.size(), machine_);
  bench_.print(
      "# float sum, root 0, out of place. {} rounds of all candidates in turn; "
      "each call with its input written\n"
      "# before and its output read after it, less the median of that alone; "
      "the slowest rank; medians. What is\n"
      "# not ahead of the built-in choice by {:.0f} %, and in three rounds of four, does not replace it.\n",
      Effort{}.rounds, 100 * TuneBench::kMargin);
  OURO_TRY(measure());
  bench_.print(
      "#\n# Took {:.0f} s. In {} of {} races other programs took "
      "more than {:.0f} % of the processors each time{}.\n",
      bench_.seconds(), bench_.disturbed(), bench_.races(), 100 * TuneBench::kDisturbed,
      bench_.disturbed() > 0 ? ", and decided nothing: run again when it is idle" : "");
  if (bench_.wrong() > 0)
    bench_.print("# Results: WRONG, {} elements. Nothing is written.\n", bench_.wrong());
  else
    bench_.print("# Results: {}\n",
                 options_.check > 0 ? "right, whole buffers compared bit for bit" : "not checked (-c 0)");
  if (bench_.wrong() == 0 && outer_.rank() == 0) OURO_TRY(write());
  OURO_TRY(bench_.close());
  return bench_.wrong() == 0 ? 0 : 1;
}

}  // namespace

int run_tune(const Options& o, const Split& split, Context& context) {
  Tuner tuner(o, split, context);
  const Result<int> code = tuner.run();
  if (!code) {
    tools::complain("ouro-perf: rank {}: {}\n", context.rank(), code.status().message());
    context.world().abort(fmt::format("ouro-perf: rank {} gave up", context.rank()));
    return 1;
  }
  if (const Status s = context.close(); !s) {
    tools::complain("ouro-perf: rank {}: {}\n", context.rank(), s.message());
    return 1;
  }
  return *code;
}

}  // namespace ouro::perf
