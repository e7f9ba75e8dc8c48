// The command line of ouro-perf: flags as in nccl-tests, plus a few of its own. The only file that knows
// CLI11. Used by main.cc and the tests.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "ouro/ouro.hpp"
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
Exit: 0 good, 1 wrong result or failure, 2 usage.)";

std::string kind_names() {
  std::string s;
  for (const KindInfo& k : all_kinds()) s += fmt::format("{}{}", s.empty() ? "" : ", ", k.name);
  return s;
}

/// Flags of nccl-tests about GPUs, as given.
struct GpuFlags {
  int gpus = 1, graph = 0, cpu_time = 0, null_stream = 0, cta_policy = 0, device_impl = 0, device_ctas = 16;
  /// What means nothing here is accepted at its neutral value only; the others need --device cuda.
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

constexpr const char* kAggregation = "aggregation";  // averages over sites, no collective

bool goes_with_tune(std::string_view option) {
  static constexpr std::string_view kThese[] = {"--tune",    "collective",     "--nthreads", "--ranks",
                                                "--bind",    "--minbytes",     "--maxbytes", "--check",
                                                "--timeout", "--parallel_init"};
  return std::find(std::begin(kThese), std::end(kThese), option) != std::end(kThese);
}

int usage_error(const std::string& text) {
  fmt::print(stderr, "ouro-perf: {}\nTry: ouro-perf --help\n", text);
  return 2;
}

}  // namespace

Parsed parse_command_line(int argc, const char* const* argv) {
  Options o;
  GpuFlags gpu;
  std::string collective, min = "32M", max = "32M", step = "1M", dtype = "float", op = "sum", root = "0",
                          bind, device = "host";
  int parallel = 0, blocking = 0, average = 1, reg = 0, timestamps = 0, memory = 0, stats = 0;
  bool csv = false, osu = false, json = false;
  std::size_t factor = 1;

  CLI::App app{"ouro-perf: times and checks collectives; flags and table as in nccl-tests.", "ouro-perf"};
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("ouro-perf ") + version());
  const auto named = argc > 0 ? parse_kind(argv[0]) : std::nullopt;
  if (!named)
    app.add_option("collective", collective, fmt::format("One of: {}; or {}", kind_names(), kAggregation));
  app.add_option("-t,--nthreads", o.threads, "Ranks as threads of this process")->check(CLI::Range(1, 256));
  app.add_option("--ranks", o.ranks, "Start this many processes, one rank each")->check(CLI::Range(1, 1024));
  app.add_option("--bind", bind,
                 "Bind each rank while it measures: core, cache, numa or none (OURO_BIND, else none)");
  app.add_option("--device", device, "Where buffers are: host, or cuda for GPUs (host)")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("-g,--ngpus", gpu.gpus,
                 "GPU: ranks for each of -t, threads as well; ranks may share a GPU (1)")
      ->check(CLI::Range(1, 256));
  app.add_option("-b,--minbytes", min, "Smallest size (32M)");
  app.add_option("-e,--maxbytes", max, "Largest size (32M)");
  app.add_option("-i,--stepbytes", step, "Step between sizes (1M)");
  app.add_option("-f,--stepfactor", factor, "Factor between sizes; above 1 it replaces -i");
  app.add_option("-n,--iters", o.iters, "Timed iterations (20)")->check(CLI::Range(1, 1 << 30));
  app.add_option("-w,--warmup_iters", o.warmup, "Untimed iterations before each block (1)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("-m,--agg_iters", o.aggregate, "Operations submitted together in each iteration (1)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("-N,--run_cycles", o.cycles, "Run the whole table so often (1)")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("-p,--parallel_init", parallel, "1: each thread makes its own context (0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-c,--check", o.check, "Checked iterations; 0: no check (1)")->check(CLI::Range(0, 1 << 30));
  auto* op_flag = app.add_option("-o,--op", op, "Reduction, or all (sum)");
  app.add_option("-d,--datatype", dtype, "Element type, or all (float)");
  auto* root_flag = app.add_option("-r,--root", root, "Root rank, or all (0)");
  app.add_option("-z,--blocking", blocking, "How calls follow each other, 0 to 3; see below (0)")
      ->check(CLI::Range(0, 3));
  app.add_option("-y,--stream_null", gpu.null_stream, "GPU: 1: the null stream (0)")->check(CLI::Range(0, 1));
  app.add_option("-T,--timeout", o.timeout_s, "Deadline of each operation in seconds; 0: the library's (0)")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("-G,--cudagraph", gpu.graph, "GPU: capture all iterations, launch so often; 0: no graph (0)")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("-C,--report_cputime", gpu.cpu_time,
                 "GPU: 1: time of the calls, not of what they enqueue (0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-a,--average", average, "Time over ranks: 0 rank 0, 1 mean, 2 min, 3 max (1)")
      ->check(CLI::Range(0, 3));
  app.add_option("-R,--local_register", reg, "1: buffers that all ranks of the node map (0)");
  app.add_option("-x,--cta_policy", gpu.cta_policy, "Not here (0)");
  app.add_option("-D,--device_implementation", gpu.device_impl, "Not here (0)");
  app.add_option("-V,--device_cta_count", gpu.device_ctas, "Not here (16)");
  app.add_flag("--events", o.events, "GPU: time by events of the stream instead of the host's clock");
  app.add_flag("--limit", o.limit,
               "GPU: how near each row came to a copy inside the device, measured after it");
  app.add_option("-J,--output_file", o.json_file, "Write JSON there; an existing file gets a new name");
  app.add_option("-S,--report_timestamps", timestamps, "1: a time stamp at each row (0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-M,--memory_report", memory, "1: memory of the ranks after the table (0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-u,--unalign", o.unalign, "Shift the buffers by so many elements (0)")
      ->check(CLI::Range(0, 1 << 16));
  app.add_option("-I,--iteration_stats", stats, "1: i_min i_max i_p99 i_cv% of the iterations (0)")
      ->check(CLI::Range(0, 1));
  app.add_option("-K,--skip_samples", o.skip_samples, "First iterations that -I leaves out (0)")
      ->check(CLI::Range(0, 1 << 30));
  auto* csv_flag = app.add_flag("--csv", csv, "Rows as CSV");
  auto* osu_flag = app.add_flag("--osu", osu, "Rows as the OSU benchmarks print them (out of place)");
  auto* json_flag = app.add_flag("--json", json, "The JSON of -J on stdout, and nothing else");
  csv_flag->excludes(osu_flag)->excludes(json_flag);
  osu_flag->excludes(json_flag);
  app.add_flag("--explain", o.explain, "What would run, and why, at each row");
  app.add_flag("--verdict", o.verdict, "In words: right or wrong, and how near to the limit of the memory");
  auto* compare_flag =
      app.add_option("--compare", o.base_file, "JSON file of an earlier run: print time then / time now");
  compare_flag->excludes(json_flag);
  app.add_option(
      "--tune", o.tune_file,
      "Time every algorithm of every collective, or of the one named, from -b (8) to -e (16M) bytes, "
      "and write the file that OURO_TUNE reads");
  AggregationFlags federated;
  app.add_option("--sites", federated.sites, "Aggregation: ranks of each site, such as 4,2 (two halves)");
  app.add_option("--hsdp", federated.hsdp,
                 "Aggregation: ranks a replica, shards being averaged apart (each site is one replica)")
      ->check(CLI::Range(1, 1024));
  app.add_option(
      "--groups", federated.groups,
      "Aggregation: who meets across sites: senders, or all_replicas where sites are equal (senders)");
  app.add_option("--strategy", federated.strategy, "Aggregation: a strategy, or all (all)");
  app.add_option("--streams", federated.streams, "Aggregation: numbers of streams (1,4)");
  app.add_option("--layers", federated.layers, "Aggregation: layers that a size is cut into (16)")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--plot", o.plot_file, "Draw bandwidth over size as SVG; an existing file gets a new name");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return {std::nullopt, app.exit(e) == 0 ? 0 : 2};
  }

  const auto fail = [](const std::string& text) { return Parsed{std::nullopt, usage_error(text)}; };
  const auto kind = named ? named : parse_kind(collective);
  const auto given = app.get_options([](const CLI::Option* x) { return x->count() > 0; });
  const bool aggregation = !named && collective == kAggregation && o.tune_file.empty();
  for (const CLI::Option* option : given) {
    const std::string name = option->get_name();
    if (aggregation && !goes_with_aggregation(name))
      return fail(fmt::format("{} does not go with {}", name, kAggregation));
    if (!aggregation && is_of_aggregation(name))
      return fail(fmt::format("{} goes with {} only", name, kAggregation));
  }
  if (!o.tune_file.empty()) {
    if (!kind && !collective.empty())
      return fail(fmt::format("unknown collective '{}'; one of: {}", collective, kind_names()));
    if (kind == Kind::sendrecv) return fail("sendrecv has no algorithms to choose from");
    for (const CLI::Option* option : given)
      if (std::string name = option->get_name(); !goes_with_tune(name))
        return fail(
            fmt::format("{} does not go with --tune, which chooses by itself what is timed and how", name));
    o.tune_only = kind;
    if (app.count("--minbytes") == 0) min = "8";
    if (app.count("--maxbytes") == 0) max = "16M";
    factor = 4;
  }
  if (!kind && collective.empty() && o.tune_file.empty())
    return fail(fmt::format("which collective? One of: {}; or {}", kind_names(), kAggregation));
  if (!kind && o.tune_file.empty() && !aggregation)
    return fail(
        fmt::format("unknown collective '{}'; one of: {}; or {}", collective, kind_names(), kAggregation));
  if (aggregation) {
    auto parsed = parse_aggregation(federated);
    if (!parsed) return fail(parsed.status().failure()->text);
    o.aggregation = std::move(*parsed);
  }
  o.kind = kind.value_or(Kind::all_reduce);
  for (const auto& [flag, text, to] :
       {std::tuple{"-b", &min, &o.min_bytes}, {"-e", &max, &o.max_bytes}, {"-i", &step, &o.step_bytes}}) {
    const auto bytes = parse_size(*text);
    if (!bytes) return fail(fmt::format("{} {}: not a size (such as 0, 512, 4K, 32M, 1G)", flag, *text));
    *to = *bytes;
  }
  if (factor == 0) return fail("-f 0: a factor is at least 2, or 1 for none");
  o.step_factor = factor;

  const auto place = rt::chosen_bind(bind);
  if (!place) return fail(place.status().failure()->text);
  if (*place != rt::Bind::none && rt::machine().invented)
    return fail("ranks cannot be bound to the machine that HWLOC_XMLFILE or HWLOC_SYNTHETIC describes");
  o.bind = *place;
  auto dtypes = parse_dtypes(dtype);
  if (!dtypes) return fail(dtypes.status().failure()->text);
  o.dtypes = std::move(*dtypes);
  if (aggregation && o.dtypes.size() > 1)  // all: every one that can be averaged
    std::erase_if(o.dtypes, [](DType t) { return !averages(t); });
  auto ops = parse_ops(op);
  if (!ops) return fail(ops.status().failure()->text);
  if (info(o.kind).reduces) {
    o.ops = std::move(*ops);
  } else if (op_flag->count() > 0 && op != "sum" && op != "all") {  // all: every one that there is
    return fail(fmt::format("-o {}: {} does not reduce", op, info(o.kind).name));
  }
  if (root != "all") {
    int value = -1;
    const char* end = root.data() + root.size();
    if (const auto [stop, error] = std::from_chars(root.data(), end, value);
        error != std::errc{} || stop != end || value < 0)
      return fail(fmt::format("-r {}: a rank or all", root));
    o.root = value;
  } else {
    o.root.reset();
  }
  if (!info(o.kind).rooted && root_flag->count() > 0 && o.root != 0 && root != "all")
    return fail(fmt::format("-r {}: {} has no root", root, info(o.kind).name));
  if (reg != 0 && reg != 1)
    return fail(fmt::format(
        "-R {}: 0 private buffers, 1 buffers of ouro's allocator; there are no symmetric windows", reg));
  o.device = device == "cuda";
  if (const Status s = gpu.check(o.device); !s) return fail(s.failure()->text);

  if (json && (memory == 1 || o.verdict || o.limit))
    return fail(fmt::format("{} prints words, and --json nothing but JSON; leave one of them out, or see -J",
                            memory == 1 ? "-M 1"
                            : o.verdict ? "--verdict"
                                        : "--limit"));
  o.parallel_init = parallel == 1;
  o.blocking = static_cast<Blocking>(blocking);
  if (o.device && !aggregation && o.blocking == Blocking::back_to_back) o.blocking = Blocking::stream;
  o.gpus = gpu.gpus;
  o.graph = gpu.graph;
  o.cpu_time = gpu.cpu_time == 1;
  o.null_stream = gpu.null_stream == 1;
  o.average = static_cast<Average>(average);
  o.registered = reg == 1;
  o.timestamps = timestamps == 1;
  o.memory_report = memory == 1;
  o.iteration_stats = stats == 1;
  o.output = csv ? Output::csv : osu ? Output::osu : json ? Output::json : Output::table;
  o.args.assign(argv, argv + argc);
  if (const Status s = validate(o); !s) return fail(s.failure()->text);
  return {std::move(o), 0};
}

}  // namespace ouro::perf
