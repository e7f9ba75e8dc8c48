// Checks and times one row of the table on every rank of a group.
// Used by the rank program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "tools/perf/data.h"
#include "tools/perf/device.h"
#include "tools/perf/operation.h"
#include "tools/perf/options.h"
#include "tools/perf/stats.h"

namespace ouro::perf {

/// Gathers `count` values of every rank of `world`, in rank order. T must be trivially copyable. Collective.
template <class T>
Result<std::vector<T>> collect(Group& world, const T* mine, std::size_t count = 1) {
  std::vector<T> all(count * static_cast<std::size_t>(world.size()));
  const Status s = all_gather(world, CView(mine, count * sizeof(T), DType::u8),
                              View(all.data(), all.size() * sizeof(T), DType::u8), kAuto);
  if (!s) return s;
  return all;
}

/// The figures of one rank for one side of a row.
struct OwnFigures {
  double seconds = 0;
  std::size_t wrong = 0;
  /// Seconds of a call, with -I 1 of each, with --distribution of some together; the same number on all
  /// ranks.
  std::vector<double> samples;
  std::uint64_t maps = 0;  ///< as in Distribution, of this rank
  int warmup = 0;          ///< as in Distribution
};
/// Combines the figures of all ranks: times by -a, #wrong as a sum. Collective over the world; `bytes` and
/// `ranks` determine the bandwidth.
Result<Half> half_of_all(const Options&, Group& world, Kind, std::size_t bytes, int ranks, const OwnFigures&);

class Bench {
 public:
  /// Allocates buffers for sizes up to -e. `world` is all ranks, `group` those of this rank's split; both
  /// must outlive the Bench.
  static Result<Bench> make(const Options&, Context&, Group& world, Group& group);

  /// Collective over the world: every rank gets the same row, with times combined by -a and #wrong summed
  /// over all ranks.
  Result<Row> row(std::size_t size, DType, OpKind, int root);

  /// Copy bandwidth in GB/s, with reads and writes counted, the best of a few rounds. On the host it is the
  /// sum over all ranks while each copies one private buffer of -e bytes to another. On GPUs: copies inside
  /// each GPU in use, measured one after the other by one rank each, and summed. Collective over the world.
  struct CopyRate {
    double gbs = 0;
    std::size_t bytes = 0;  ///< size of one copy
    int gpus = 0;           ///< 0: memory of the host
  };
  Result<CopyRate> copy_bandwidth();

 private:
  Bench(const Options& o, Context& context, Group& world, Group& group)
      : options_(&o), world_(&world), group_(&group), context_(context.impl()) {}

  Call make_call(std::size_t size, DType, OpKind, int root, bool in_place) const;
  Result<Half> half(const Call&, OpKind, bool in_place);
  Result<std::size_t> check_once(const Call&, OpKind, bool in_place, bool in_graph);
  /// Runs all iterations of one side of a row. Sets everything but `wrong`.
  Status time_block(const Call&, OwnFigures&);
  Result<int> warm_up(const Call&);  ///< returns the number of calls
  /// The timed loop: of launches if there is a graph, otherwise of calls.
  Status repeat(const Call&, CapturedGraph*, std::vector<double>& samples);
  /// Seconds that f and the work enqueued by it take, by the clock that the options choose.
  Result<double> timed(const std::function<Status()>& f);
  Result<std::unique_ptr<CapturedGraph>> captured(const Call&, int times, int aggregate);
  Result<CopyRate> device_copy_bandwidth();
  Status step(const Call&, int times);  ///< one iteration in the form that -z selects
  Status drain();                       ///< waits for the stream, if there is one
  /// The algorithm that runs on this rank, and why; for both halves of a row if they differ.
  Result<std::string> explanation(const Call&, const Call* in_place) const;

  const Options* options_;
  Group* world_;
  Group* group_;
  Buffer send_, recv_;
  Device device_;
  Mover mover_;
  Stream stream_;                         ///< valid for -z 2 and 3, and for buffers on a GPU
  std::unique_ptr<EventClock> clock_;     ///< one mark before the loop, and one after each sample
  std::shared_ptr<rt::Context> context_;  ///< counts the mappings
  std::uint64_t seed_ = 1;
};

}  // namespace ouro::perf
