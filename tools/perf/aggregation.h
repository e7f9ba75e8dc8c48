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
  /// Allocates for sizes up to -e. The context must outlive the bench. Errors: invalid (the numbers of sites,
  /// replicas and ranks do not fit together).
  static Result<AggregationBench> make(const Options&, Context&);

  /// Collective over the world. `size`: bytes of one rank's parameters. First side of the row: a plan that is
  /// made once and run repeatedly; second side: `aggregate`, which plans in each call. busbw: algbw *
  /// 2(F-1)/F for F sites.
  Result<Row> row(std::size_t size, DType, train::Strategy, int streams);

  /// Makes the model of a row with `size` bytes: the parameters that are averaged.
  std::span<const train::Param> cut(std::size_t size, DType);
  /// Fills the model, calls `average` and counts the elements on this rank that are not the mean of the
  /// senders, and the bytes outside the layers that were overwritten.
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
  std::vector<train::Param> params_;  ///< separated by guards
  std::uint64_t seed_ = 1;
};

}  // namespace ouro::perf
