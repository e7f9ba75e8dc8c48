// The validated settings of one ouro-perf run, and the grammar of sizes and splits. Used by every file of
// ouro-perf and by its tests; only cli.cc knows the spelling of the flags.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "tools/perf/aggregation_options.h"
#include "tools/perf/collective.h"

namespace ouro::perf {

/// How the calls of one timed block follow each other (-z).
enum class Blocking {
  back_to_back = 0,  ///< in the calling thread, without waiting between calls
  barrier = 1,       ///< in the calling thread, with a barrier of all ranks after each
  stream = 2,        ///< enqueued on a stream, one wait at the end
  stream_wait = 3,   ///< enqueued on a stream, a wait after each
};

enum class Average { rank0 = 0, mean = 1, min = 2, max = 3 };
enum class Output { table, csv, osu, json };

struct Options {
  Kind kind = Kind::all_reduce;
  /// Set: averages over sites are timed instead of a collective.
  std::optional<AggregationOptions> aggregation;
  std::vector<std::string> args;  ///< the command line as given, for the JSON file

  bool device = false;  ///< buffers are on GPUs (--device cuda)
  int threads = 1;      ///< -t
  int gpus = 1;         ///< ranks of each thread (-g)
  int ranks = 0;        ///< processes to start (--ranks); 0: none
  std::size_t min_bytes = 32u << 20;
  std::size_t max_bytes = 32u << 20;
  std::size_t step_bytes = 1u << 20;
  std::size_t step_factor = 1;  ///< above 1: each size is this multiple of the one before
  int iters = 20;
  int warmup = 1;
  int aggregate = 1;  ///< operations in one group_start/group_end (-m)
  int cycles = 1;     ///< runs of the whole table (-N)
  bool parallel_init = false;
  int check = 1;
  std::vector<OpKind> ops;  ///< empty: the collective does not reduce
  std::vector<DType> dtypes;
  std::optional<int> root = 0;  ///< nullopt: all roots
  Blocking blocking = Blocking::back_to_back;
  int timeout_s = 0;  ///< deadline of each operation; 0: the library's default
  Average average = Average::mean;
  rt::Bind bind = rt::Bind::none;  ///< binding of each rank while it measures (--bind)
  bool registered = false;         ///< buffers from ouro's allocator (-R 1)
  int graph = 0;                   ///< launches of the graph that holds all iterations (-G); 0: no graph
  bool cpu_time = false;           ///< time the calls alone, without the work that they enqueue (-C)
  bool null_stream = false;        ///< -y
  bool events = false;             ///< time by the clock of the device (--events)
  bool limit = false;              ///< compare with a copy inside the device (--limit)
  bool timestamps = false;         ///< -S
  bool memory_report = false;      ///< -M
  std::size_t unalign = 0;         ///< elements between a page boundary and each buffer (-u)
  bool iteration_stats = false;    ///< -I
  int skip_samples = 0;            ///< -K
  /// Warm up until times settle; minimum, median and 95th percentile of the calls (--distribution).
  bool distribution = false;

  std::string json_file;          ///< -J
  std::string plot_file;          ///< --plot
  std::string base_file;          ///< --compare
  std::string tune_file;          ///< --tune: the rules file to write; no table is printed then
  std::optional<Kind> tune_only;  ///< of --tune; nullopt: all collectives
  Output output = Output::table;
  bool explain = false;
  bool verdict = false;
  double min_busbw = 0;  ///< GB/s that the average must reach (min_busbw_from_env); 0: no minimum

  int local_threads() const { return threads * gpus; }  ///< ranks in this process
  const char* name() const { return aggregation ? "aggregation" : info(kind).name; }
  const char* program() const { return aggregation ? "aggregation" : info(kind).program; }
};

/// Parses "0", "512", "4K", "1M", "2G" (binary, either case, an optional trailing B). nullopt: not a size.
std::optional<std::size_t> parse_size(std::string_view);

/// All sizes of a table, in order. After a first size of 0 with a factor, the next size is one element.
std::vector<std::size_t> sizes(const Options&, std::size_t element_bytes);

/// Parses `all`, or one name. The text of the error lists the names.
Result<std::vector<DType>> parse_dtypes(const std::string&);
Result<std::vector<OpKind>> parse_ops(const std::string&);

/// How ranks are divided into groups that run at the same time: "MOD 8", "AND 0x7", "OR 1", "DIV 2" (or % &
/// | /).
struct Split {
  char op = 0;  ///< one of % & | /; 0: no split, one group
  std::uint64_t value = 0;
  int color(int rank) const;
};
Result<Split> parse_split(std::string_view);
/// Reads NCCL_TESTS_SPLIT, else NCCL_TESTS_SPLIT_MASK (hexadecimal, AND); no split if neither is set.
Result<Split> split_from_env();
/// Reads NCCL_TESTS_MIN_BW, in GB/s; 0: not set. Error invalid: not a number of 0 or more.
Result<double> min_busbw_from_env();

/// Checks that the options are consistent with each other (needs no command line).
Status validate(const Options&);

/// The result of reading a command line. Without options there is an exit code: help or version was printed
/// (0), or an error (2).
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse_command_line(int argc, const char* const* argv);

}  // namespace ouro::perf
