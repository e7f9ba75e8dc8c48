// The command line of ouro-perf: flags as in nccl-tests, plus some of its own. The only file here that knows
// CLI11. Used by main.cc and the tests.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "ouro/ouro.hpp"
#include "tools/cli/errors.h"
#include "tools/cli/numbers.h"
#include "tools/cli/output.h"
#include "tools/perf/options.h"

namespace ouro::perf {
namespace {

constexpr const char* kExamples = R"(Examples:
  ouro-perf all_reduce -t 4 -b 8 -e 128M -f 2          four ranks as threads
  ouro-perf all_gather --ranks 2 -d bfloat16 -c 1      two ranks as processes
  ouro-run -n 4 ouro-perf all_reduce -b 0 -e 1M -f 4   under a launcher
  ouro-perf all_reduce --device cuda --ranks 2 --limit two ranks on one GPU, or on two
  all_reduce_perf --device cuda -g 4 -G 10 --events    four ranks as threads, in a graph
  all_reduce_perf -b 1M -e 1M -d all -o all -J out.json --verdict
  ouro-perf --tune here.json --ranks 2                 measure this machine; then: OURO_TUNE=here.json
  ouro-perf aggregation -t 6 --sites 4,2 --hsdp 2      federated averages, by strategy and number of streams
Without -t, -g, --ranks or a launcher there is one rank. -z: 0 calls back to back in the calling thread, 1 a barrier
after each, 2 all on a stream and one wait, 3 on a stream with a wait after each; on GPUs 0 is 2. Sizes are binary (K, M, G).
Environment, as in nccl-tests: NCCL_TESTS_MIN_BW=GB/s fails the run whose average bus bandwidth is below 0.9 of it;
NCCL_TESTS_SPLIT="MOD|DIV|AND|OR N", or NCCL_TESTS_SPLIT_MASK=HEX (AND), makes groups of ranks with equal results;
NCCL_TESTS_DEVICE=N is the first GPU.
Exit: 0 good, 1 wrong result or failure, or output could not be written, 2 usage.)";

std::string kind_names() {
  std::string s;
  for (const KindInfo& k : all_kinds()) s += fmt::format("{}{}", s.empty() ? "" : ", ", k.name);
  return s;
}

/// Flags of nccl-tests that concern GPUs, as given.
struct GpuFlags {
  int gpus = 1, graph = 0, cpu_time = 0, null_stream = 0, cta_policy = 0, device_impl = 0, device_ctas = 16;
  /// Flags that have no meaning here are accepted only with their neutral value; the others need
  /// --device cuda.
  Status check(bool device) const {
    if (cta_policy != 0)
      return invalid("-x chooses thread blocks, which ouro does itself; leave it out or give 0");
    if (device_impl != 0) return invalid("-D chooses a kernel of nccl-tests' own; leave it out or give 0");
    if (device_ctas != 16) return invalid("-V counts thread blocks of -D; leave it out");
    if (device) return {};
    const std::string host = "without --device cuda there is no GPU in use: ";
    if (gpus != 1) return invalid(host + fmt::format("-g {} makes ranks for GPUs; use -t or --ranks", gpus));
    if (graph != 0) return invalid(host + "-G captures CUDA graphs; leave it out or give 0");
    if (cpu_time != 0)
      return invalid(host + "-C separates CPU from GPU time; on the host they are one, give 0");
    if (null_stream != 0)
      return invalid(host + "-y 1 is the null stream of CUDA; see -z for streams of the host");
    return {};
  }
};

constexpr const char* kAggregation = "aggregation";  // times averages over sites, not a collective

bool goes_with_tune(std::string_view option) {
  static constexpr std::string_view kThese[] = {"--tune",    "collective",     "--nthreads", "--ranks",
                                                "--bind",    "--minbytes",     "--maxbytes", "--check",
                                                "--timeout", "--parallel_init"};
  return std::find(std::begin(kThese), std::end(kThese), option) != std::end(kThese);
}

int usage_error(const std::string& text) {
  tools::complain("ouro-perf: {}\nTry: ouro-perf --help\n", text);
  return 2;
}

/// The options as CLI11 fills them, and their conversion. The methods below are in the order in which they
/// are called.
class CommandLine {
 public:
  explicit CommandLine(std::optional<Kind> named) : named_(named) {
    app_.footer(kExamples);
    tools::name_in_errors(app_);
    app_.set_version_flag("--version", std::string("ouro-perf ") + version());
    if (!named_)
      app_.add_option("collective", collective_,
                      fmt::format("One of: {}; or {}", kind_names(), kAggregation));
    ranks();
    sizes();
    repetitions();
    calls();
    gpus();
    output();
    statements();
    federated();
  }
  CLI::App& app() { return app_; }

  /// The parsed options, checked. Errors: invalid, naming the option.
  Result<Options> take(int argc, const char* const* argv) {
    kind_ = named_ ? named_ : parse_kind(collective_);
    aggregation_ = !named_ && collective_ == kAggregation && o_.tune_file.empty();
    OURO_TRY(choose_what());
    if (!o_.tune_file.empty()) OURO_TRY(choose_tune());
    if (aggregation_) {
      auto parsed = parse_aggregation(federated_);
      if (!parsed) return parsed.status();
      o_.aggregation = std::move(*parsed);
    }
    o_.kind = kind_.value_or(Kind::all_reduce);
    OURO_TRY(choose_sizes());
    OURO_TRY(choose_place());
    OURO_TRY(choose_types());
    OURO_TRY(choose_root());
    OURO_TRY(choose_output());
    if (o_.device && !aggregation_ && o_.blocking == Blocking::back_to_back) o_.blocking = Blocking::stream;
    if (o_.device && !aggregation_ && distribution_flag_->count() == 0) o_.distribution = true;
    o_.args.assign(argv, argv + argc);
    OURO_TRY(validate(o_));
    return std::move(o_);
  }

 private:
  /// Adds an option that takes 0 or 1, as the switches of nccl-tests do.
  CLI::Option* zero_or_one(const char* names, bool& to, const char* about) {
    return app_
        .add_option_function<int>(
            names, [&to](const int& x) { to = x == 1; }, about)
        ->check(CLI::Range(0, 1));
  }

  void ranks() {
    app_.add_option("-t,--nthreads", o_.threads, "Ranks as threads of this process")
        ->check(CLI::Range(1, 256));
    app_.add_option("--ranks", o_.ranks, "Start this many processes, one rank each")
        ->check(CLI::Range(1, 1024));
    app_.add_option("--bind", bind_,
                    "Bind each rank while it measures: core, cache, numa or none (OURO_BIND, else none)");
    app_.add_option("--device", device_, "Where buffers are: host, or cuda for GPUs (host)")
        ->check(CLI::IsMember({"host", "cuda"}));
    app_.add_option("-g,--ngpus", gpu_.gpus,
                    "GPU: ranks for each of -t, threads as well; ranks may share a GPU (1)")
        ->check(CLI::Range(1, 256));
    zero_or_one("-p,--parallel_init", o_.parallel_init, "1: each thread makes its own context (0)");
  }
  void sizes() {
    app_.add_option("-b,--minbytes", min_, "Smallest size (32M)");
    app_.add_option("-e,--maxbytes", max_, "Largest size (32M)");
    app_.add_option("-i,--stepbytes", step_, "Step between sizes (1M)");
    app_.add_option("-f,--stepfactor", factor_, "Factor between sizes; above 1 it replaces -i (1)")
        ->check(tools::at_least(1));
    app_.add_option("-u,--unalign", o_.unalign, "Shift the buffers by so many elements (0)")
        ->check(CLI::Range(0, 1 << 16));
  }
  void repetitions() {
    app_.add_option("-n,--iters", o_.iters, "Timed iterations (20)")->check(CLI::Range(1, 1 << 30));
    app_.add_option("-w,--warmup_iters", o_.warmup, "Untimed iterations before each block (1)")
        ->check(CLI::Range(0, 1 << 30));
    app_.add_option("-m,--agg_iters", o_.aggregate, "Operations submitted together in each iteration (1)")
        ->check(CLI::Range(1, 1 << 20));
    app_.add_option("-N,--run_cycles", o_.cycles, "Run the whole table so often (1)")
        ->check(CLI::Range(1, 1 << 30));
    app_.add_option("-c,--check", o_.check, "Checked iterations; 0: no check (1)")
        ->check(CLI::Range(0, 1 << 30));
    app_.add_option("-a,--average", average_, "Time over ranks: 0 rank 0, 1 mean, 2 min, 3 max (1)")
        ->check(CLI::Range(0, 3));
    zero_or_one("-I,--iteration_stats", o_.iteration_stats,
                "1: i_min i_max i_p99 i_cv% of the iterations (0)");
    distribution_flag_ =
        zero_or_one("--distribution", o_.distribution,
                    "1: warm up until times settle; min, median, p95 of the calls; mark uneven rows (1 with "
                    "--device cuda, else 0)");
    app_.add_option("-K,--skip_samples", o_.skip_samples, "First iterations that -I leaves out (0)")
        ->check(CLI::Range(0, 1 << 30));
  }
  void calls() {
    op_flag_ = app_.add_option("-o,--op", op_, "Reduction, or all (sum)");
    app_.add_option("-d,--datatype", dtype_, "Element type, or all (float)");
    root_flag_ = app_.add_option("-r,--root", root_, "Root rank, or all (0)");
    app_.add_option("-z,--blocking", blocking_, "How calls follow each other, 0 to 3; see below (0)")
        ->check(CLI::Range(0, 3));
    app_.add_option("-T,--timeout", o_.timeout_s,
                    "Deadline of each operation in seconds; 0: the library's (0)")
        ->check(CLI::Range(0, 1 << 20));
    app_.add_option("-R,--local_register", reg_, "1: buffers that all ranks of the node map (0)");
  }
  void gpus() {
    app_.add_option("-y,--stream_null", gpu_.null_stream, "GPU: 1: the null stream (0)")
        ->check(CLI::Range(0, 1));
    app_.add_option("-G,--cudagraph", gpu_.graph,
                    "GPU: capture all iterations, launch so often; 0: no graph (0)")
        ->check(CLI::Range(0, 1 << 20));
    app_.add_option("-C,--report_cputime", gpu_.cpu_time,
                    "GPU: 1: time of the calls, not of what they enqueue (0)")
        ->check(CLI::Range(0, 1));
    app_.add_option("-x,--cta_policy", gpu_.cta_policy,
                    "Of nccl-tests: which thread blocks; ouro chooses them itself, so 0 only");
    app_.add_option(
        "-D,--device_implementation", gpu_.device_impl,
        "Of nccl-tests: its own kernels instead of the library's; there are none here, so 0 only");
    app_.add_option("-V,--device_cta_count", gpu_.device_ctas,
                    "Of nccl-tests: thread blocks of -D; without a meaning here, so 16 only");
    app_.add_flag("--events", o_.events, "GPU: time by events of the stream instead of the host's clock");
    app_.add_flag("--limit", o_.limit,
                  "GPU: how near each row is to a copy inside the device, measured after it");
  }
  void output() {
    app_.add_option("-J,--output_file", o_.json_file, "Write JSON there; an existing file gets a new name");
    zero_or_one("-S,--report_timestamps", o_.timestamps, "1: a time stamp at each row (0)");
    zero_or_one("-M,--memory_report", o_.memory_report, "1: memory of the ranks after the table (0)");
    auto* csv = app_.add_flag("--csv", csv_, "Rows as CSV on stdout, and all words on stderr");
    auto* osu = app_.add_flag("--osu", osu_, "Rows as the OSU benchmarks print them (out of place)");
    auto* json = app_.add_flag("--json", json_, "The JSON of -J on stdout, and nothing else");
    csv->excludes(osu)->excludes(json);
    osu->excludes(json);
    app_.add_option("--compare", o_.base_file, "JSON file of an earlier run: print time then / time now")
        ->excludes(json);
    app_.add_option("--plot", o_.plot_file,
                    "Draw bandwidth over size as SVG; an existing file gets a new name");
  }
  void statements() {
    app_.add_flag("--explain", o_.explain, "What would run, and why, at each row");
    app_.add_flag("--verdict", o_.verdict,
                  "In words: right or wrong, and how near to the limit of the memory");
    app_.add_option(
        "--tune", o_.tune_file,
        "Time every algorithm of every collective, or of the one named, from -b (8) to -e (16M) bytes, "
        "and write the file that OURO_TUNE reads");
  }
  void federated() {
    app_.add_option("--sites", federated_.sites, "Aggregation: ranks of each site, such as 4,2 (two halves)");
    app_.add_option("--hsdp", federated_.hsdp,
                    "Aggregation: ranks a replica, shards being averaged apart (each site is one replica)")
        ->check(CLI::Range(1, 1024));
    app_.add_option(
        "--groups", federated_.groups,
        "Aggregation: who meets across sites: senders, or all_replicas where sites are equal (senders)");
    app_.add_option("--strategy", federated_.strategy, "Aggregation: a strategy, or all (all)");
    app_.add_option("--streams", federated_.streams, "Aggregation: numbers of streams (1,4)");
    app_.add_option("--layers", federated_.layers, "Aggregation: layers that a size is cut into (16)")
        ->check(CLI::Range(1, 1 << 16));
  }

  std::vector<const CLI::Option*> given() const {
    return app_.get_options([](const CLI::Option* x) { return x->count() > 0; });
  }

  Status choose_what() const {
    for (const CLI::Option* option : given()) {
      const std::string name = option->get_name();
      if (aggregation_ && !goes_with_aggregation(name))
        return invalid(fmt::format("{} cannot be combined with {}", name, kAggregation));
      if (!aggregation_ && is_of_aggregation(name))
        return invalid(fmt::format("{} is for {} only", name, kAggregation));
    }
    if (!o_.tune_file.empty() || kind_ || aggregation_) return {};
    if (collective_.empty())
      return invalid(fmt::format("which collective? One of: {}; or {}", kind_names(), kAggregation));
    return invalid(
        fmt::format("unknown collective '{}'; one of: {}; or {}", collective_, kind_names(), kAggregation));
  }
  Status choose_tune() {
    if (!kind_ && !collective_.empty())
      return invalid(fmt::format("unknown collective '{}'; one of: {}", collective_, kind_names()));
    if (kind_ == Kind::sendrecv) return invalid("sendrecv has no algorithms to choose from");
    for (const CLI::Option* option : given())
      if (std::string name = option->get_name(); !goes_with_tune(name))
        return invalid(fmt::format(
            "{} cannot be combined with --tune, which chooses by itself what is timed and how", name));
    o_.tune_only = kind_;
    if (app_.count("--minbytes") == 0) min_ = "8";
    if (app_.count("--maxbytes") == 0) max_ = "16M";
    factor_ = 4;
    return {};
  }
  Status choose_sizes() {
    for (const auto& [flag, text, to] : {std::tuple{"-b", &min_, &o_.min_bytes},
                                         {"-e", &max_, &o_.max_bytes},
                                         {"-i", &step_, &o_.step_bytes}}) {
      const auto bytes = parse_size(*text);
      if (!bytes) return invalid(fmt::format("{} {}: not a size (such as 0, 512, 4K, 32M, 1G)", flag, *text));
      *to = *bytes;
    }
    o_.step_factor = factor_;
    return {};
  }
  /// Sets the binding to cores, and whether buffers are on the host or on GPUs.
  Status choose_place() {
    const auto place = rt::chosen_bind(bind_);
    if (!place) return place.status();
    if (*place != rt::Bind::none && rt::machine().invented)
      return invalid("ranks cannot be bound to the machine that HWLOC_XMLFILE or HWLOC_SYNTHETIC describes");
    o_.bind = *place;
    if (reg_ != 0 && reg_ != 1)
      return invalid(fmt::format(
          "-R {}: 0 private buffers, 1 buffers of ouro's allocator; there are no symmetric windows", reg_));
    o_.registered = reg_ == 1;
    o_.device = device_ == "cuda";
    OURO_TRY(gpu_.check(o_.device));
    o_.gpus = gpu_.gpus;
    o_.graph = gpu_.graph;
    o_.cpu_time = gpu_.cpu_time == 1;
    o_.null_stream = gpu_.null_stream == 1;
    o_.blocking = static_cast<Blocking>(blocking_);
    return {};
  }
  Status choose_types() {
    auto dtypes = parse_dtypes(dtype_);
    if (!dtypes) return dtypes.status();
    o_.dtypes = std::move(*dtypes);
    if (aggregation_ && o_.dtypes.size() > 1)  // all: every type that can be averaged
      std::erase_if(o_.dtypes, [](DType t) { return !averages(t); });
    auto ops = parse_ops(op_);
    if (!ops) return ops.status();
    if (info(o_.kind).reduces())
      o_.ops = std::move(*ops);
    else if (op_flag_->count() > 0 && op_ != "sum" && op_ != "all")  // all: every operation that exists
      return invalid(fmt::format("-o {}: {} does not reduce", op_, info(o_.kind).name));
    return {};
  }
  Status choose_root() {
    if (root_ != "all") {
      int value = -1;
      const char* end = root_.data() + root_.size();
      if (const auto [stop, error] = std::from_chars(root_.data(), end, value);
          error != std::errc{} || stop != end || value < 0)
        return invalid(fmt::format("-r {}: a rank or all", root_));
      o_.root = value;
    } else {
      o_.root.reset();
    }
    if (!info(o_.kind).rooted() && root_flag_->count() > 0 && o_.root != 0 && root_ != "all")
      return invalid(fmt::format("-r {}: {} has no root", root_, info(o_.kind).name));
    return {};
  }
  Status choose_output() {
    if (json_ && (o_.memory_report || o_.verdict || o_.limit))
      return invalid(
          fmt::format("{} prints words, and --json nothing but JSON; leave one of them out, or see -J",
                      o_.memory_report ? "-M 1"
                      : o_.verdict     ? "--verdict"
                                       : "--limit"));
    o_.average = static_cast<Average>(average_);
    o_.output = csv_ ? Output::csv : osu_ ? Output::osu : json_ ? Output::json : Output::table;
    return {};
  }

  const std::optional<Kind> named_;  ///< chosen by the program's name
  CLI::App app_{"ouro-perf: times and checks collectives; flags and table as in nccl-tests.", "ouro-perf"};
  Options o_;
  GpuFlags gpu_;
  AggregationFlags federated_;
  std::string collective_, min_ = "32M", max_ = "32M", step_ = "1M", dtype_ = "float", op_ = "sum",
                           root_ = "0", bind_, device_ = "host";
  int blocking_ = 0, average_ = 1, reg_ = 0;
  bool csv_ = false, osu_ = false, json_ = false;
  std::size_t factor_ = 1;
  const CLI::Option *op_flag_ = nullptr, *root_flag_ = nullptr, *distribution_flag_ = nullptr;
  std::optional<Kind> kind_;
  bool aggregation_ = false;
};

}  // namespace

Parsed parse_command_line(int argc, const char* const* argv) {
  CommandLine line(argc > 0 ? parse_kind(argv[0]) : std::nullopt);
  try {
    line.app().parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return {std::nullopt, tools::answer(line.app(), e)};
  }
  Result<Options> options = line.take(argc, argv);
  if (!options) return {std::nullopt, usage_error(options.status().failure()->text)};
  return {std::move(*options), 0};
}

}  // namespace ouro::perf
