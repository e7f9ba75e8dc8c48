/// Reports of a trainer to its user: load imbalance, step times, printing on one rank; and information from
/// its launcher. For users.
/// @file
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// @defgroup timings Training: timings
/// @{

/// Timings of one rank, in the order of its steps: the seconds that each iteration of a step took.
using Timings = std::vector<std::pair<std::string, std::vector<double>>>;

/// How long ranks waited for the slowest rank in one step.
struct Imbalance {
  std::string step;    ///< its name
  double useful = 0;   ///< sum over iterations of the mean over ranks, seconds
  double waiting = 0;  ///< sum over iterations of the maximum over ranks, minus `useful`
};
/// A step of rank 0 that some other rank does not have.
struct Skipped {
  std::string step;        ///< its name
  std::size_t before = 0;  ///< index of the reported step that it preceded
};
/// The load imbalance of all steps.
struct OURO_API ImbalanceReport {
  std::vector<Imbalance> steps;  ///< steps of rank 0, in its order
  std::vector<Skipped> skipped;  ///< steps left out of the report
  std::string text() const;      ///< a table, one line per step, with skipped steps in their places
};
/// `ranks[r]`: the timings of rank r. Errors: invalid (no ranks; ranks with different numbers of iterations
/// of a step, or none; a step that a rank has twice).
OURO_API Result<ImbalanceReport> load_imbalance(std::span<const Timings> ranks);

/// The times of one step on one rank.
struct StepTime {
  std::string step;  ///< its name
  double mean = 0;   ///< mean over the iterations, seconds
  double total = 0;  ///< sum over the iterations, seconds
};
/// The times of one step over all ranks.
struct StepSummary {
  std::string step;    ///< its name
  double maximum = 0;  ///< maximum over the totals of the ranks that have the step, seconds
  double mean = 0;     ///< mean of the same totals, seconds
};
/// The times of all steps of all ranks.
struct OURO_API TimeInfo {
  std::vector<std::vector<StepTime>> ranks;  ///< steps of each rank, in its order
  std::vector<StepSummary> steps;            ///< in the order of their first appearance
  std::string text() const;                  ///< a table, one line per step
};
/// Errors: as load_imbalance.
OURO_API Result<TimeInfo> time_info(std::span<const Timings> ranks);

/// @}
/// @defgroup job Training: what a rank knows of its job
/// @{

/// The value of the first of these environment variables that is set and not empty.
OURO_API std::optional<std::string> first_env(std::span<const char* const> names);
/// Whether all variables that torchrun sets for its workers exist.
OURO_API bool launched_by_torchrun();

/// A rank's place in its job.
struct DistInfo {
  int local_rank = 0;        ///< rank among the ranks of this host
  int rank = 0;              ///< rank in the job
  int local_world_size = 1;  ///< number of ranks on this host
  int world_size = 1;        ///< number of ranks in the job
  friend bool operator==(const DistInfo&, const DistInfo&) = default;
};
/// Reads the context only, never the environment; returns the defaults if the context is not active.
OURO_API DistInfo dist_info(const Context&);

/// A rank of the job, for print_on().
struct Rank {
  int value = 0;  ///< the rank
};
/// A local rank on each host, for print_on().
struct LocalRank {
  int value = 0;  ///< the local rank
};
/// Writes `text` and a newline to standard output, in one piece, on this rank only; without an active job it
/// always writes. Returns whether it wrote.
OURO_API bool print_on(const Context&, Rank, std::string_view text);
/// On this local rank of each host.
OURO_API bool print_on(const Context&, LocalRank, std::string_view text);

/// A barrier of the world group; a no-op without an active job.
OURO_API Status safe_barrier(Context&);
/// @}

}  // namespace ouro::train
