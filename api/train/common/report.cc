// Reports on timings, printing, and information from launchers. See report.hpp.
#include "ouro/train/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <set>

namespace ouro::train {
namespace {

const std::vector<double>* find(const Timings& t, const std::string& step) {
  const auto at = std::find_if(t.begin(), t.end(), [&](const auto& entry) { return entry.first == step; });
  return at == t.end() ? nullptr : &at->second;
}

Status check(std::span<const Timings> ranks) {
  if (ranks.empty()) return invalid("timings of no rank");
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::set<std::string_view> names;
    for (const auto& [step, seconds] : ranks[r]) {
      if (!names.insert(step).second)
        return invalid(fmt::format("rank {} has two timings of step '{}'", r, step));
      if (seconds.empty()) return invalid(fmt::format("step '{}' of rank {} has no iterations", step, r));
      for (std::size_t other = 0; other < r; ++other)
        if (const auto* theirs = find(ranks[other], step); theirs && theirs->size() != seconds.size())
          return invalid(fmt::format("step '{}' has {} iterations on rank {} and {} on rank {}", step,
                                     theirs->size(), other, seconds.size(), r));
    }
  }
  return {};
}

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

bool print(std::string_view text) {
  const std::string line = fmt::format("{}\n", text);
  std::fflush(stdout);  // output that the program has written with stdio is printed first
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t n = write(STDOUT_FILENO, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

Result<ImbalanceReport> load_imbalance(std::span<const Timings> ranks) {
  OURO_TRY(check(ranks));
  ImbalanceReport report;
  for (const auto& [step, first] : ranks[0]) {
    std::vector<const std::vector<double>*> all;
    for (const Timings& t : ranks)
      if (const auto* seconds = find(t, step)) all.push_back(seconds);
    if (all.size() != ranks.size()) {
      report.skipped.push_back({step, report.steps.size()});
      continue;
    }
    Imbalance found{step};
    for (std::size_t i = 0; i < first.size(); ++i) {
      double total = 0, slowest = first[i];
      for (const auto* seconds : all) {
        total += (*seconds)[i];
        slowest = std::max(slowest, (*seconds)[i]);
      }
      const double mean = total / static_cast<double>(ranks.size());
      found.useful += mean;
      found.waiting += slowest - mean;
    }
    report.steps.push_back(std::move(found));
  }
  return report;
}

std::string ImbalanceReport::text() const {
  std::string out = fmt::format("{:<25} {:>12} {:>12}\n{:-<80}\n", "Step Name", "Useful Work", "Waiting", "");
  auto next = skipped.begin();
  for (std::size_t i = 0; i <= steps.size(); ++i) {
    for (; next != skipped.end() && next->before == i; ++next)
      out += fmt::format("Time for Step - '{}' not found in all ranks, skipping...\n", next->step);
    if (i < steps.size())
      out += fmt::format("{:<25}{:>11.4f}s{:>11.4f}s\n", steps[i].step, steps[i].useful, steps[i].waiting);
  }
  return out;
}

Result<TimeInfo> time_info(std::span<const Timings> ranks) {
  OURO_TRY(check(ranks));
  TimeInfo info;
  struct Totals {
    std::string step;
    std::vector<double> totals;
  };
  std::vector<Totals> all;
  for (const Timings& t : ranks) {
    auto& mine = info.ranks.emplace_back();
    for (const auto& [step, seconds] : t) {
      const double total = sum(seconds);
      mine.push_back({step, total / static_cast<double>(seconds.size()), total});
      auto at = std::find_if(all.begin(), all.end(), [&](const Totals& a) { return a.step == step; });
      if (at == all.end()) at = all.insert(at, {step, {}});
      at->totals.push_back(total);
    }
  }
  for (const auto& [step, totals] : all)
    info.steps.push_back({step, *std::max_element(totals.begin(), totals.end()),
                          sum(totals) / static_cast<double>(totals.size())});
  return info;
}

std::string TimeInfo::text() const {
  std::string out = "Timing information for each rank:\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    out += fmt::format("Rank {} timing information:\n", r);
    for (const StepTime& s : ranks[r])
      out += fmt::format("  {}: {:.4f} seconds (total: {:.4f} seconds)\n", s.step, s.mean, s.total);
  }
  out += "\nMaximum timing information:\n";
  for (const StepSummary& s : steps) out += fmt::format("  {}: {:.4f} seconds\n", s.step, s.maximum);
  out += "\nAverage timing information:\n";
  for (const StepSummary& s : steps) out += fmt::format("  {}: {:.4f} seconds\n", s.step, s.mean);
  return out;
}

std::optional<std::string> first_env(std::span<const char* const> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value && *value) return value;
  return std::nullopt;
}

bool launched_by_torchrun() {
  constexpr const char* kSet[] = {"LOCAL_RANK",         "RANK",
                                  "GROUP_RANK",         "ROLE_RANK",
                                  "LOCAL_WORLD_SIZE",   "WORLD_SIZE",
                                  "ROLE_WORLD_SIZE",    "MASTER_ADDR",
                                  "MASTER_PORT",        "TORCHELASTIC_RESTART_COUNT",
                                  "TORCHELASTIC_RUN_ID"};
  return std::all_of(std::begin(kSet), std::end(kSet),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

DistInfo dist_info(const Context& c) {
  if (!c.active()) return {};
  return {c.local_rank(), c.rank(), c.local_world_size(), c.world_size()};
}

bool print_on(const Context& c, Rank rank, std::string_view text) {
  return (!c.active() || c.rank() == rank.value) && print(text);
}
bool print_on(const Context& c, LocalRank rank, std::string_view text) {
  return (!c.active() || c.local_rank() == rank.value) && print(text);
}

Status safe_barrier(Context& c) { return c.active() ? barrier(c.world()) : Status{}; }

}  // namespace ouro::train
