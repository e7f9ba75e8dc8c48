// The settings of `ouro-perf aggregation`: sites, replicas, strategies, streams, layers. Used by cli.cc,
// which defines the flags, by the rank program, the reports and the tests.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ouro/train/federation.hpp"

namespace ouro::perf {

struct AggregationOptions {
  std::vector<int> sites;   ///< number of ranks of each; empty: two halves of all ranks
  std::optional<int> hsdp;  ///< ranks per replica; none: each site is one shard group
  train::FederatedGroups groups = train::FederatedGroups::senders;
  std::vector<train::Strategy> strategies;
  std::vector<int> streams;
  int layers = 16;
};

/// The flags as given; 0 and empty texts: not given.
struct AggregationFlags {
  std::string sites, strategy = "all", streams = "1,4", groups = "senders";
  int hsdp = 0, layers = 16;
};
/// Errors: invalid; the text names the flag and the values that it takes.
Result<AggregationOptions> parse_aggregation(const AggregationFlags&);

const char* name(train::FederatedGroups);
/// Whether an option of ouro-perf, given by its long name, applies to the aggregation.
bool goes_with_aggregation(std::string_view option);
/// Whether it applies to the aggregation only.
bool is_of_aggregation(std::string_view option);

/// Whether the type can be averaged: floating-point types of at least 16 bits.
bool averages(DType);
/// The number of ranks of each site if there are `ranks` ranks. Errors: invalid (fewer than two sites, an odd
/// number of ranks to halve, all_replicas with unequal sites). Other errors are reported by the
/// layout itself.
Result<std::vector<int>> sites_of(const AggregationOptions&, int ranks);
/// Elements of each layer of a model of `count` elements: the layers get shares of 1, 2, 3, 4, 1, ..., so
/// that runs of layers and turns differ.
std::vector<std::size_t> layer_counts(std::size_t count, int layers);

}  // namespace ouro::perf
