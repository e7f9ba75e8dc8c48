// One row of results and the arithmetic over samples and ranks.
// Used by the measuring loop, the reports and the tests.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/types.h"
#include "tools/perf/distribution.h"
#include "tools/perf/options.h"

namespace ouro::perf {

/// Statistics of the iterations of one block, in microseconds; p99 by nearest rank; cv: deviation / mean
/// in percent.
struct SampleStats {
  double min = 0, max = 0, p99 = 0, cv = 0;
};
SampleStats summarize(std::vector<double> samples);

/// Combines one value of each rank as -a says.
double combine(std::span<const double> by_rank, Average);

/// One side of a row: out of place or in place.
struct Half {
  double us = 0;
  double algbw = 0, busbw = 0;         ///< GB/s (1e9 bytes)
  std::optional<std::size_t> wrong;    ///< elements over all ranks; nullopt: not checked
  std::optional<SampleStats> samples;  ///< with -I 1
  std::optional<Distribution> distribution = {};
};
Half half_of(Kind, std::size_t bytes, int ranks, double seconds);

struct Row {
  std::size_t size = 0, count = 0;
  std::string type, redop = "none";
  int root = -1;
  Half out_of_place;
  std::optional<Half> in_place;  ///< nullopt: the collective has no in-place form
  std::string explain, timestamp;
  /// Strategy of the aggregation, which names its sides differently from a collective (report.h).
  std::string strategy = {};
  int streams = 0;
};

struct RankInfo {
  int rank = 0, group = 0, pid = 0;
  std::string host, device;
  double peak_bytes = 0;  ///< largest resident set, filled after the table
  int gpu = -1;           ///< index as the rank's process counts GPUs; -1: it works on the host
  std::string bus = {};   ///< PCI address of that GPU, "0000:17:00.0"
};

struct Summary {
  std::size_t wrong = 0;
  bool checked = false;
  int marked = 0;  ///< halves whose distribution is marked
  double average_busbw = 0;
  double min_busbw = 0;  ///< minimum to reach, in GB/s; 0: none
  std::vector<std::string> errors;
  bool right() const { return wrong == 0; }
  bool fast_enough() const { return average_busbw >= 0.9 * min_busbw; }
  int exit_code() const { return right() && fast_enough() && errors.empty() ? 0 : 1; }
};
Summary summarize(std::span<const Row>, double min_busbw);

}  // namespace ouro::perf
