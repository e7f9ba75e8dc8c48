// The settings of one ouro-perf run: what the command line says, checked, and the grammar of sizes and
// splits. Used by every file of ouro-perf and by its tests; only cli.cc knows how they are spelt.
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
  back_to_back = 0,  ///< in the calling thread, one after the other
  barrier = 1,       ///< in the calling thread, all ranks meet after each
  stream = 2,        ///< enqueued on a stream, one wait at the end
  stream_wait = 3,   ///< enqueued on a stream, a wait after each
};

enum class Average { rank0 = 0, mean = 1, min = 2, max = 3 };
enum class Output { table, csv, osu, json };

struct Options {
  Kind kind = Kind::all_reduce;
  std::optional<AggregationOptions> aggregation;  ///< instead of a collective: averages over sites
  std::vector<std::string> args;                  ///< as given, for the JSON file

  bool device = false;  ///< buffers are on GPUs (--device cuda)
  int threads = 1;      ///< -t
  int gpus = 1;         ///< ranks for each of them (-g)
  int ranks = 0;        ///< processes to start (--ranks); 0: none
  std::size_t min_bytes = 32u << 20;
  std::size_t max_bytes = 32u << 20;
  std::size_t step_bytes = 1u << 20;
  std::size_t step_factor = 1;  ///< above 1: sizes are multiplied
  int iters = 20;
  int warmup = 1;
  int aggregate = 1;  ///< operations in one group_start/group_end (-m)
  int cycles = 1;     ///< how often the whole table is run (-N)
  bool parallel_init = false;
  int check = 1;
  std::vector<OpKind> ops;  ///< empty: the collective does not reduce
  std::vector<DType> dtypes;
  std::optional<int> root = 0;  ///< nullopt: all roots
  Blocking blocking = Blocking::back_to_back;
  int timeout_s = 0;  ///< of each operation; 0: the library's own
  Average average = Average::mean;
  rt::Bind bind = rt::Bind::none;  ///< each rank, while it measures (--bind)
  bool registered = false;         ///< buffers from ouro's allocator (-R 1)
  int graph = 0;                   ///< launches of the graph that holds all iterations (-G); 0: no graph
  bool cpu_time = false;           ///< of the calls alone, without what they enqueued (-C)
  bool null_stream = false;        ///< -y
  bool events = false;             ///< time by the clock of the device (--events)
  bool limit = false;              ///< how near to a copy inside the device (--limit)
  bool timestamps = false;         ///< -S
  bool memory_report = false;      ///< -M
  std::size_t unalign = 0;         ///< elements between a page boundary and each buffer (-u)
  bool iteration_stats = false;    ///< -I
  int skip_samples = 0;            ///< -K

  std::string json_file;          ///< -J
  std::string plot_file;          ///< --plot
  std::string base_file;          ///< --compare
  std::string tune_file;          ///< --tune: the rules file to write, instead of a table
  std::optional<Kind> tune_only;  ///< of --tune; nullopt: all collectives
  Output output = Output::table;
  bool explain = false;
  bool verdict = false;
  double min_busbw = 0;  ///< GB/s that the average is to reach (min_busbw_from_env); 0: none

  int local_threads() const { return threads * gpus; }  ///< ranks in this process
  const char* name() const { return aggregation ? "aggregation" : info(kind).name; }
  const char* program() const { return aggregation ? "aggregation" : info(kind).program; }
};

/// "0", "512", "4K", "1M", "2G" (binary, either case, an optional trailing B). nullopt: not a size.
std::optional<std::size_t> parse_size(std::string_view);

/// All sizes of a table, in order. A first size of 0 with a factor goes on from one element.
std::vector<std::size_t> sizes(const Options&, std::size_t element_bytes);

/// `all`, or one name. Fails with a text that lists the names.
Result<std::vector<DType>> parse_dtypes(const std::string&);
Result<std::vector<OpKind>> parse_ops(const std::string&);

/// How ranks are divided into groups that run at the same time: "MOD 8", "AND 0x7", "OR 1", "DIV 2" (or % & |
/// /).
struct Split {
  char op = 0;  ///< one of % & | /; 0: no split, one group
  std::uint64_t value = 0;
  int color(int rank) const;
};
Result<Split> parse_split(std::string_view);
/// From NCCL_TESTS_SPLIT, else NCCL_TESTS_SPLIT_MASK (hexadecimal, AND), else no split.
Result<Split> split_from_env();
/// NCCL_TESTS_MIN_BW, in GB/s; 0: none. Error invalid: not a number of 0 or more.
Result<double> min_busbw_from_env();

/// What a single value says wrong about the others (needs no command line).
Status validate(const Options&);

/// Reads a command line. An exit code instead of options: help or version was printed (0), or an error (2).
struct Parsed {
  std::optional<Options> options;
  int exit_code = 0;
};
Parsed parse_command_line(int argc, const char* const* argv);

}  // namespace ouro::perf
