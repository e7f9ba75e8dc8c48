// How the times of the calls of one block are distributed, and when a warm-up has settled. Used by the
// measuring loop, the reports and the tests.
#pragma once
#include <cstdint>
#include <vector>

#include "tools/perf/options.h"

namespace ouro::perf {

constexpr double kUnevenHalves = 1.3;  // a row whose halves differ by more is marked

/// The samples of one side of a row (--distribution), in microseconds a call; p95 by nearest rank.
struct Distribution {
  double min = 0, median = 0, p95 = 0;
  /// Mean of the slower half of the loop, first or second, divided by that of the faster; 0: one sample only.
  double halves = 0;
  std::uint64_t maps = 0;  ///< memory of other processes that all ranks mapped during the loop
  int warmup = 0;          ///< calls of each rank before the loop
  bool uneven() const { return halves > kUnevenHalves; }
  bool marked() const { return uneven() || maps > 0; }
};
/// `us` in the order in which they were taken; `maps` and `warmup` remain 0.
Distribution distribution_of(const std::vector<double>& us);

/// The number of calls (with -G: of launches) that are timed as one sample. Calls that return before the
/// work has ended are timed in at most 20 blocks, all others one by one, unless they are many.
int calls_per_sample(const Options&);
/// The number of samples of one block.
int samples_of(const Options&);
/// Whether a sample is the time between two marks in the stream of a GPU, taken by the clock of the device.
bool marks_samples(const Options&);
/// Whether each sample ends with a wait for the stream: only on streams of the host, which have no marks.
bool waits_for_samples(const Options&);

/// When a warm-up ends: it runs blocks of half the least number of calls until two in succession take the
/// same time within 5 %, and at most ten times the least number of calls, or 2 seconds.
class WarmUp {
 public:
  explicit WarmUp(int least) : least_(least) {}
  int next() const;  ///< calls of the next block; 0: it has ended
  /// A block has run. `us`: of one call; `elapsed`: seconds since the warm-up began. Every rank must pass
  /// the same values.
  void add(double us, double elapsed);
  int calls() const { return calls_; }

 private:
  int least_, calls_ = 0;
  double last_ = 0;
  bool settled_ = false;
};

}  // namespace ouro::perf
