// Rows, threshold, merging. See tune_rules.h.
#include "tools/perf/tune_rules.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ouro::perf {
namespace {

bool replaces(const rt::Rule& fresh, const rt::Rule& old) {
  return fresh.collective == old.collective && fresh.cores == old.cores && fresh.min_ranks == old.min_ranks &&
         fresh.max_ranks == old.max_ranks &&
         (fresh.buffers == old.buffers || old.buffers == rt::Buffers::any);
}

}  // namespace

std::vector<rt::Rule> rows_of(const Scope& scope, std::span<const Winner> winners) {
  std::vector<rt::Rule> rows;
  for (std::size_t i = 0; i < winners.size(); ++i) {
    const bool last = i + 1 == winners.size();
    if (!last && winners[i + 1].algorithm == winners[i].algorithm) continue;
    rt::Rule row;
    row.collective = scope.collective, row.buffers = scope.buffers, row.cores = scope.cores;
    row.min_ranks = row.max_ranks = scope.ranks;
    row.algorithm = winners[i].algorithm;
    if (!last)
      row.max_bytes = static_cast<std::size_t>(
          std::sqrt(static_cast<double>(winners[i].bytes) * static_cast<double>(winners[i + 1].bytes)));
    else if (winners[i].bytes > 0)
      row.max_bytes = winners[i].bytes;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::size_t stream_threshold(std::span<const StreamPoint> points, double margin, std::size_t cache_bytes,
                             std::size_t old) {
  std::size_t least = 0;
  for (const StreamPoint& p : points) {
    if (p.gain <= 1 + margin)
      least = 0;
    else if (least == 0)
      least = p.bytes;
  }
  if (least > 0) return least;
  if (points.empty() || old > points.back().bytes) return old;
  const std::size_t above = 2 * points.back().bytes;
  return cache_bytes / 4 * 3 >= above ? 0 : above;
}

std::vector<rt::Rule> merge(std::vector<rt::Rule> fresh, const std::vector<rt::Rule>& old) {
  const std::size_t mine = fresh.size();
  for (const rt::Rule& row : old)
    if (std::none_of(fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(mine),
                     [&](const rt::Rule& f) { return replaces(f, row); }))
      fresh.push_back(row);
  return fresh;
}

Result<rt::Rules> existing_rules(const std::string& file, const std::string& machine) {
  if (::access(file.c_str(), F_OK) != 0) return rt::Rules{.rows = {}, .origin = file};
  auto rules = rt::load_rules(file);
  if (!rules) return rules;
  std::ifstream in(file);
  // Cannot fail: load_rules has read it as an object.
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (const auto was = json.find("machine"); was != json.end() && was->is_string() && *was != machine)
    return invalid(fmt::format("{} was measured on '{}', and this is '{}': give the name of another file",
                               file, was->get<std::string>(), machine));
  return rules;
}

}  // namespace ouro::perf
