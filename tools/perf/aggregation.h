// Times and checks federated averages: one row is one strategy with one number of streams.
// Used by the rank program.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ouro/train/federation.hpp"
#include "tools/perf/device.h"
#include "tools/perf/operation.h"
#include "tools/perf/options.h"
#include "tools/perf/stats.h"

namespace ouro::perf {

class AggregationBench {
 public:
  /// Room for sizes up to -e. The context outlives the bench. Errors: invalid (sites, replicas and ranks that
  /// do not fit together).
  static Result<AggregationBench> make(const Options&, Context&);

  /// Collective over the world. `size`: bytes of the parameters of one rank. First side: a plan that is made
  /// once and run; second: `aggregate`, which plans in each call. busbw: algbw * 2(F-1)/F for F sites.
  Result<Row> row(std::size_t size, DType, train::Strategy, int streams);

  /// Makes the model of a row, of so many bytes: the parameters that `average` is about.
  std::span<const train::Param> cut(std::size_t size, DType);
  /// Fills it, averages and counts the elements on this rank that are not the mean of the senders, and bytes
  /// beside the layers that were written.
  Result<std::size_t> check_once(const std::function<Status()>& average);
  train::LayoutGroups& groups() { return groups_; }

 private:
  AggregationBench(const Options& o, Group& world) : options_(&o), world_(&world) {}

  Result<Half> half(std::size_t bytes, const std::function<Status()>& average);
  Result<double> time_block(const std::function<Status()>& average, std::vector<double>& samples);
  int sites() const { return groups_.layout.federation->count; }

  const Options* options_;
  Group* world_;
  Device device_;
  Mover mover_;
  train::LayoutGroups groups_;
  Buffer memory_;
  DType dtype_ = DType::f32;
  std::vector<train::Param> params_;  ///< apart from each other by guards
  std::uint64_t seed_ = 1;
};

}  // namespace ouro::perf
