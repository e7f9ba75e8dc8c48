// ouro-perf: times and checks collectives and federated averages, with the flags and the table of
// nccl-tests. A program; also installed under the names of nccl-tests (all_reduce_perf, ...), which
// choose the collective.
#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/gpu.h"
#include "ouro/ouro.hpp"
#include "runtime/join/launch.h"
#include "tools/cli/output.h"
#include "tools/perf/options.h"
#include "tools/perf/probe.h"
#include "tools/perf/rank.h"
#include "tools/perf/tune.h"
#include "tools/run/launcher.h"

namespace ouro::perf {
namespace {

int fail(int code, const std::string& text) {
  tools::complain("ouro-perf: {}\n", text);
  return code;
}

/// NCCL_TESTS_DEVICE: the GPU of the first rank of this host; the following ranks use the following GPUs.
Result<std::optional<int>> first_gpu() {
  const char* text = std::getenv("NCCL_TESTS_DEVICE");
  if (!text) return std::optional<int>();
  int value = -1;
  const char* end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, value);
      error != std::errc{} || stop != end || value < 0)
    return invalid(fmt::format("NCCL_TESTS_DEVICE={}: expected the number of a GPU", text));
  return std::optional<int>(value);
}

/// `first`: the GPU of local rank 0, if it was chosen. After the last GPU, further ranks start again
/// with the first.
InitOptions init_options(const Options& o, std::optional<int> first = {}, int local_rank = 0) {
  InitOptions init;
  if (o.timeout_s > 0) init.deadline = std::chrono::seconds(o.timeout_s);
  if (!o.device && o.tune_file.empty()) init.gpu = -1;  // the GPU driver is not queried
  if (o.device && first) init.gpu = (*first + local_rank) % gpu::gpu().devices();
  return init;
}

/// The command line without --ranks, for the processes that become ranks.
std::vector<std::string> child_arguments(const Options& o) {
  std::vector<std::string> args;
  for (std::size_t i = 0; i < o.args.size(); ++i) {
    if (o.args[i] == "--ranks") {
      ++i;
    } else if (!o.args[i].starts_with("--ranks=")) {
      args.push_back(o.args[i]);
    }
  }
  return args;
}

int launch_processes(const Options& o) {
  run::RunOptions options;
  options.ranks = o.ranks;
  options.prefix = false;  // no prefixes: rank 0 alone prints the table
  options.name = "ouro-perf";
  const Result<int> code = run::run_ranks(options, child_arguments(o));
  return code ? *code : fail(1, code.status().message());
}

/// The function that each rank runs: the table, or the tuner.
auto program(const Options& o) { return o.tune_file.empty() ? &run_rank : &run_tune; }

int run_process(const Options& o, const Split& split, std::optional<int> gpu, int local_rank) {
  auto context = Context::from_env(init_options(o, gpu, local_rank));
  return context ? program(o)(o, split, *context) : fail(1, context.status().message());
}

int run_threads(const Options& o, const Split& split, std::optional<int> gpu) {
  const int n = o.local_threads();
  const bool apart = o.parallel_init || gpu;
  std::vector<Context> contexts;
  UniqueId id;
  if (apart) {
    auto made = UniqueId::create();
    if (!made) return fail(1, made.status().message());
    id = *made;
  } else {
    auto made = Context::threads(n, init_options(o));
    if (!made) return fail(1, made.status().message());
    contexts = std::move(*made);
  }
  std::atomic<int> worst = 0;  // the threads are joined before it is read: no ordering needed
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < n; ++r)
      ranks.emplace_back([&, r] {
        int code = 1;
        if (apart) {
          InitOptions init = init_options(o, gpu, r);
          init.rank = init.local_rank = r;
          init.world_size = init.local_size = n;
          init.id = id;
          auto context = Context::create(init);
          code = context ? program(o)(o, split, *context) : fail(1, context.status().message());
        } else {
          code = program(o)(o, split, contexts[static_cast<std::size_t>(r)]);
        }
        int seen = worst.load(std::memory_order_relaxed);
        while (code > seen && !worst.compare_exchange_weak(seen, code, std::memory_order_relaxed)) {
        }
      });
  }
  return worst.load(std::memory_order_relaxed);
}

/// Fails early, instead of by the out-of-memory killer, if the buffers of all ranks on this host do not fit
/// into memory: two for each rank (six for the tuner, two of each kind and of each context; for the
/// aggregation a model, its flat copy and its image).
Status check_memory(const Options& o, int local_ranks) {
  std::ifstream meminfo("/proc/meminfo");
  double available = 0;
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) available = std::atof(line.c_str() + 13) * 1024;
  // If the device is a GPU, the host holds only the data that it compares; an emulated device is in the
  // host's memory.
  const bool fake = o.device && std::strcmp(gpu::gpu().name(), "fake") == 0;
  const int buffers = !o.tune_file.empty() ? 6
                      : o.aggregation      ? (o.device && !fake ? 2 : 3)
                      : o.device           ? (o.check > 0 ? 2 : 0) + (fake ? 2 : 0)
                                           : 2;
  const double needed = 1.0 * buffers * static_cast<double>(o.max_bytes) * local_ranks;
  if (available <= 0 || needed <= available) return {};
  return Status(Reason::resource,
                fmt::format("-e {} needs {:.1f} GB for {} buffers of {} ranks, {:.1f} GB are free",
                            o.max_bytes, needed / 1e9, buffers, local_ranks, available / 1e9));
}

int run(int argc, char** argv) {
  const Parsed parsed = parse_command_line(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  Options o = *parsed.options;

  const auto min_busbw = min_busbw_from_env();
  if (!min_busbw) return fail(2, min_busbw.status().failure()->text);
  o.min_busbw = *min_busbw;
  const auto first = first_gpu();
  if (!first) return fail(2, first.status().failure()->text);
  if (*first && !o.device)
    return fail(2,
                "NCCL_TESTS_DEVICE chooses a GPU, and without --device cuda there is none in use; unset it");
  if (o.device && gpu::gpu().devices() == 0)
    return fail(1, "--device cuda: there is no GPU: " + gpu::gpu().version());
  const auto split = split_from_env();
  if (!split) return fail(2, split.status().failure()->text);
  if (o.aggregation && split->op != 0)
    return fail(2, "aggregation makes its own groups; unset NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK");
  const auto launch = discover();
  if (!launch) return fail(2, launch.status().message());
  const bool launched = launch->launcher != "none";
  if (o.ranks > 0 && launched)
    return fail(2, fmt::format("--ranks starts processes, but this one is already rank {} of {} ({})",
                               launch->rank, launch->size, launch->launcher));
  if (o.local_threads() > 1 && launch->size > 1)
    return fail(2,
                fmt::format("-t and -g make ranks of threads, but this process is already rank {} of {} ({})",
                            launch->rank, launch->size, launch->launcher));
  const int local_ranks = o.ranks > 0             ? o.ranks
                          : o.local_threads() > 1 ? o.local_threads()
                                                  : launch->local_size;
  if (const Status s = check_memory(o, local_ranks); !s) return fail(1, s.message());
  if (o.ranks > 0) return launch_processes(o);

  // The probe needs two idle cores, so it runs before the ranks start and after they have ended.
  const bool probes = o.verdict && launch->rank == 0 && o.output != Output::json;
  const double before = probes ? handoff_ns() : 0;
  const int code = o.local_threads() > 1 ? run_threads(o, *split, *first)
                                         : run_process(o, *split, *first, launch->local_rank);
  if (probes)
    say(o, fmt::format("#  Cores: {}; after the run: {}\n", describe_handoff(before),
                       describe_handoff(handoff_ns())));
  return code;
}

}  // namespace
}  // namespace ouro::perf

int main(int argc, char** argv) {
  return ouro::tools::run_program("ouro-perf", [&] { return ouro::perf::run(argc, argv); });
}
