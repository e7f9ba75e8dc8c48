// Percentiles, halves, sizes of samples and the end of a warm-up. See distribution.h.
#include "tools/perf/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/measure/figures.h"

namespace ouro::perf {
namespace {

constexpr int kBlocks = 20;        // of calls that do not wait
constexpr int kLeastBlock = 5;     // calls; the mark between two blocks costs as much as a part of a call
constexpr int kMostSingle = 4096;  // of calls that wait, and of launches of a graph
constexpr double kSettled = 1.05;  // ratio of two successive blocks
constexpr int kMostWarmUp = 10;    // times the least number of calls
constexpr double kMostWarmUpSeconds = 2;  // no block begins later

int divide_up(int a, int b) { return a / b + (a % b != 0); }

double mean(std::vector<double>::const_iterator from, std::vector<double>::const_iterator to) {
  return std::accumulate(from, to, 0.0) / static_cast<double>(to - from);
}

double ratio(double a, double b) {
  const double less = std::min(a, b), more = std::max(a, b);
  return less > 0 ? more / less : 1;
}

/// Whether calls return before their work has ended, and only the last is followed by a wait.
bool runs_ahead(const Options& o) { return o.blocking == Blocking::stream && !o.cpu_time; }

int units(const Options& o) { return std::max(o.graph > 0 ? o.graph : o.iters, 1); }

}  // namespace

Distribution distribution_of(const std::vector<double>& us) {
  Distribution d;
  if (us.empty()) return d;
  std::vector<double> sorted = us;
  std::sort(sorted.begin(), sorted.end());
  d.min = sorted.front(), d.median = measure::median(sorted);
  d.p95 = sorted[static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(sorted.size()))) - 1];
  if (const auto half = static_cast<std::ptrdiff_t>(us.size() / 2); half > 0)
    d.halves = ratio(mean(us.begin(), us.begin() + half), mean(us.end() - half, us.end()));
  return d;
}

int calls_per_sample(const Options& o) {
  if (o.iteration_stats) return 1;
  if (!o.distribution) return units(o);
  if (o.graph > 0 || !runs_ahead(o)) return divide_up(units(o), kMostSingle);
  return std::max(divide_up(o.iters, kBlocks), std::min(kLeastBlock, divide_up(o.iters, 2)));
}

int samples_of(const Options& o) { return divide_up(units(o), calls_per_sample(o)); }

bool marks_samples(const Options& o) {
  return o.events || (o.device && o.distribution && !o.cpu_time && (o.graph > 0 || runs_ahead(o)));
}

bool waits_for_samples(const Options& o) {
  return o.distribution && !o.device && !o.iteration_stats && runs_ahead(o);
}

int WarmUp::next() const {
  if (settled_ && calls_ >= least_) return 0;
  const long left = long{kMostWarmUp} * least_ - calls_;
  return static_cast<int>(std::clamp<long>(left, 0, divide_up(least_, 2)));
}

void WarmUp::add(double us, double elapsed) {
  calls_ += next();
  settled_ = elapsed >= kMostWarmUpSeconds || (last_ > 0 && ratio(us, last_) < kSettled);
  last_ = us;
}

}  // namespace ouro::perf
