// The arithmetic over samples, ranks and rows.
// Used by the measuring loop, the reports and the tests.
#include "tools/perf/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ouro::perf {

SampleStats summarize(std::vector<double> s) {
  if (s.empty()) return {};
  std::sort(s.begin(), s.end());
  const double n = static_cast<double>(s.size());
  const auto rank99 = static_cast<std::size_t>(std::ceil(0.99 * n));
  const double mean = std::accumulate(s.begin(), s.end(), 0.0) / n;
  double squares = 0;
  for (const double x : s) squares += (x - mean) * (x - mean);
  return {s.front(), s.back(), s[rank99 - 1], mean > 0 ? 100 * std::sqrt(squares / n) / mean : 0};
}

double combine(std::span<const double> by_rank, Average a) {
  if (by_rank.empty()) return 0;
  switch (a) {
    case Average::rank0:
      return by_rank[0];
    case Average::mean:
      return std::accumulate(by_rank.begin(), by_rank.end(), 0.0) / static_cast<double>(by_rank.size());
    case Average::min:
      return *std::min_element(by_rank.begin(), by_rank.end());
    case Average::max:
      return *std::max_element(by_rank.begin(), by_rank.end());
  }
  return 0;
}

Half half_of(Kind kind, std::size_t bytes, int ranks, double seconds) {
  Half h;
  h.us = seconds * 1e6;
  h.algbw = seconds > 0 ? static_cast<double>(bytes) / 1e9 / seconds : 0;
  h.busbw = h.algbw * bus_factor(kind, ranks);
  return h;
}

Summary summarize(std::span<const Row> rows, double min_busbw) {
  Summary s;
  s.min_busbw = min_busbw;
  double total = 0;
  std::size_t halves = 0;
  const auto add = [&](const Half& h) {
    total += h.busbw;
    ++halves;
    s.marked += h.distribution && h.distribution->marked();
    if (h.wrong) {
      s.checked = true;
      s.wrong += *h.wrong;
    }
  };
  for (const Row& r : rows) {
    add(r.out_of_place);
    if (r.in_place) add(*r.in_place);
  }
  s.average_busbw = halves > 0 ? total / static_cast<double>(halves) : 0;
  return s;
}

}  // namespace ouro::perf
