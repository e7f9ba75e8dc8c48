// What a trainer tells its user: load imbalance and step times, printing on one rank; and what it learns from
// its launcher. For users.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

// ---- timings ------------------------------------------------------------------------------------

/// Of one rank, in the order of its steps: the seconds that each iteration of a step took.
using Timings = std::vector<std::pair<std::string, std::vector<double>>>;

struct Imbalance {
  std::string step;
  double useful = 0;   ///< sum over iterations of the mean over ranks, seconds
  double waiting = 0;  ///< sum over iterations of the maximum over ranks, less `useful`
};
/// A step of rank 0 that another rank does not have.
struct Skipped {
  std::string step;
  std::size_t before = 0;  ///< index of the reported step that it stood before
};
struct OURO_API ImbalanceReport {
  std::vector<Imbalance> steps;  ///< of rank 0, in its order
  std::vector<Skipped> skipped;
  std::string text() const;  ///< a table, a line each, skipped steps in their places
};
/// `ranks[r]`: the timings of rank r. Errors: invalid (no ranks; ranks with different numbers of iterations
/// of a step, or none; a step that a rank has twice).
OURO_API Result<ImbalanceReport> load_imbalance(std::span<const Timings> ranks);

struct StepTime {
  std::string step;
  double mean = 0, total = 0;  ///< over the iterations, seconds
};
struct StepSummary {
  std::string step;
  double maximum = 0, mean = 0;  ///< of the totals of the ranks that have the step
};
struct OURO_API TimeInfo {
  std::vector<std::vector<StepTime>> ranks;
  std::vector<StepSummary> steps;  ///< in the order of their first appearance
  std::string text() const;
};
/// Errors: as load_imbalance.
OURO_API Result<TimeInfo> time_info(std::span<const Timings> ranks);

// ---- the job ------------------------------------------------------------------------------------

/// The first of these variables of the environment that is set and not empty.
OURO_API std::optional<std::string> first_env(std::span<const char* const> names);
/// Whether all variables that torchrun sets for its workers exist.
OURO_API bool launched_by_torchrun();

struct DistInfo {
  int local_rank = 0, rank = 0;
  int local_world_size = 1, world_size = 1;  ///< of this host, of the job
  friend bool operator==(const DistInfo&, const DistInfo&) = default;
};
/// From the context alone, never from the environment; the defaults where it is not active.
OURO_API DistInfo dist_info(const Context&);

struct Rank {
  int value = 0;
};
struct LocalRank {
  int value = 0;
};
/// Writes `text` and a newline to standard output, in one piece, on this rank; without an active job always.
/// Returns whether it wrote.
OURO_API bool print_on(const Context&, Rank, std::string_view text);
OURO_API bool print_on(const Context&, LocalRank, std::string_view text);

/// A barrier of the world group; nothing without an active job.
OURO_API Status safe_barrier(Context&);

}  // namespace ouro::train
