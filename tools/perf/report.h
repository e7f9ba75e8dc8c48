// The text that ouro-perf prints: banner, table as in nccl-tests, CSV, OSU, footer. Pure functions that
// return strings. Used by rank 0 of the rank program and by the tests.
#pragma once
#include <span>
#include <string>

#include "tools/perf/stats.h"

namespace ouro::perf {

/// The names of the two halves of a row, in the table and as keys of CSV and JSON.
struct Sides {
  struct Side {
    const char *title, *key;
  } first, second;
};
const Sides& sides(const Options&);

/// Every line begins with '#'.
std::string banner(const Options&, std::span<const RankInfo>, const std::string& version,
                   const std::string& start_time);
std::string header(const Options&);
std::string format_row(const Options&, const Row&);
std::string footer(const Options&, const Summary&);
/// Lines about the resident memory of each rank (-M 1).
std::string memory_lines(std::span<const RankInfo>);

/// "%7s" of the table: microseconds with as many decimals as fit.
std::string format_time(double us);
std::string format_bandwidth(double gbs);
/// Local time, "2026-11-21 12:30:31".
std::string timestamp_now();

}  // namespace ouro::perf
