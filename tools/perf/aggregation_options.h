// What `ouro-perf aggregation` is told: sites, replicas, strategies, streams, layers.
// Used by cli.cc, which knows how it is spelt, by the rank program, the reports and the tests.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ouro/train/federation.hpp"

namespace ouro::perf {

struct AggregationOptions {
  std::vector<int> sites;   ///< ranks of each; empty: two halves of all ranks
  std::optional<int> hsdp;  ///< ranks a replica; none: each site is one shard group
  train::FederatedGroups groups = train::FederatedGroups::senders;
  std::vector<train::Strategy> strategies;
  std::vector<int> streams;
  int layers = 16;
};

/// As given; 0 and empty texts: not.
struct AggregationFlags {
  std::string sites, strategy = "all", streams = "1,4", groups = "senders";
  int hsdp = 0, layers = 16;
};
/// Errors: invalid, naming the flag and what it takes.
Result<AggregationOptions> parse_aggregation(const AggregationFlags&);

const char* name(train::FederatedGroups);
/// Whether an option of ouro-perf, by its long name, means something here.
bool goes_with_aggregation(std::string_view option);
/// Whether it means something here only.
bool is_of_aggregation(std::string_view option);

/// Parameters are floating-point of 16 bits at least.
bool averages(DType);
/// The sites of so many ranks. Errors: invalid (fewer than two sites, halves that are not whole, all_replicas
/// of unequal sites). What the layout refuses it says itself.
Result<std::vector<int>> sites_of(const AggregationOptions&, int ranks);
/// Elements of each layer of a model of `count`: shares of 1, 2, 3, 4, 1, ..., so that runs and turns differ.
std::vector<std::size_t> layer_counts(std::size_t count, int layers);

}  // namespace ouro::perf
