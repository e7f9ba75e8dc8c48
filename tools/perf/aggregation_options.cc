// The grammar of the aggregation's flags, and the values derived from them. See aggregation_options.h.
#include "tools/perf/aggregation_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

namespace ouro::perf {
namespace {

constexpr int kMostRanks = 1024, kMostStreams = 64;
constexpr train::Strategy kStrategies[] = {
    train::Strategy::layer_by_layer,           train::Strategy::layer_by_layer_optimized,
    train::Strategy::bucket_flatten,           train::Strategy::bucket_coalesced,
    train::Strategy::bucket_optimized_flatten, train::Strategy::bucket_optimized_coalesced};
constexpr train::FederatedGroups kGroups[] = {train::FederatedGroups::senders,
                                              train::FederatedGroups::all_replicas};

/// Parses "4,2": numbers from 1 to `most`.
Result<std::vector<int>> parse_list(const char* flag, std::string_view text, int most) {
  const std::string_view all = text;
  std::vector<int> list;
  for (bool more = true; more;) {
    const std::string_view word = text.substr(0, text.find(','));
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < 1 || value > most)
      return invalid(fmt::format("{} {}: expected numbers from 1 to {}, such as 4,2", flag, all, most));
    list.push_back(value);
    more = word.size() < text.size();
    if (more) text.remove_prefix(word.size() + 1);
  }
  return list;
}

Result<std::vector<train::Strategy>> parse_strategies(std::string_view text) {
  if (text == "all") return std::vector(std::begin(kStrategies), std::end(kStrategies));
  std::string names = "all";
  for (const train::Strategy s : kStrategies) {
    if (text == train::name(s)) return std::vector{s};
    names += fmt::format(", {}", train::name(s));
  }
  return invalid(fmt::format("--strategy {}; one of: {}", text, names));
}

}  // namespace

const char* name(train::FederatedGroups g) {
  return g == train::FederatedGroups::senders ? "senders" : "all_replicas";
}

Result<AggregationOptions> parse_aggregation(const AggregationFlags& flags) {
  AggregationOptions o;
  if (!flags.sites.empty()) {
    auto sites = parse_list("--sites", flags.sites, kMostRanks);
    if (!sites) return sites.status();
    o.sites = std::move(*sites);
  }
  auto strategies = parse_strategies(flags.strategy);
  if (!strategies) return strategies.status();
  o.strategies = std::move(*strategies);
  auto streams = parse_list("--streams", flags.streams, kMostStreams);
  if (!streams) return streams.status();
  o.streams = std::move(*streams);
  const auto groups = std::find_if(std::begin(kGroups), std::end(kGroups),
                                   [&](train::FederatedGroups g) { return flags.groups == name(g); });
  if (groups == std::end(kGroups))
    return invalid(
        fmt::format("--groups {}; one of: {}, {}", flags.groups, name(kGroups[0]), name(kGroups[1])));
  o.groups = *groups;
  if (flags.hsdp > 0) o.hsdp = flags.hsdp;
  o.layers = flags.layers;
  return o;
}

bool goes_with_aggregation(std::string_view option) {
  static constexpr std::string_view kThese[] = {
      "collective",        "--nthreads",       "--ranks",         "--bind",
      "--device",          "--ngpus",          "--minbytes",      "--maxbytes",
      "--stepbytes",       "--stepfactor",     "--iters",         "--warmup_iters",
      "--run_cycles",      "--check",          "--datatype",      "--timeout",
      "--parallel_init",   "--average",        "--json",          "--csv",
      "--output_file",     "--local_register", "--memory_report", "--report_timestamps",
      "--iteration_stats", "--skip_samples"};
  return is_of_aggregation(option) ||
         std::find(std::begin(kThese), std::end(kThese), option) != std::end(kThese);
}

bool is_of_aggregation(std::string_view option) {
  static constexpr std::string_view kThese[] = {"--sites",    "--hsdp",    "--groups",
                                                "--strategy", "--streams", "--layers"};
  return std::find(std::begin(kThese), std::end(kThese), option) != std::end(kThese);
}

bool averages(DType t) { return is_float(t) && size_of(t) > 1; }

Result<std::vector<int>> sites_of(const AggregationOptions& o, int ranks) {
  if (o.sites.size() == 1)
    return invalid("--sites: one site has no other to average with; give two at least");
  const bool equal =
      std::adjacent_find(o.sites.begin(), o.sites.end(), std::not_equal_to<>()) == o.sites.end();
  if (!equal && o.groups == train::FederatedGroups::all_replicas)
    return invalid("--groups all_replicas: sites of different sizes have no counterparts for every rank");
  if (!o.sites.empty()) return o.sites;
  if (ranks < 2 || ranks % 2 != 0)
    return invalid(
        fmt::format("aggregation: {} rank{} not two sites of one size; give an even number, or --sites",
                    ranks, ranks == 1 ? " is" : "s are"));
  return std::vector{ranks / 2, ranks / 2};
}

std::vector<std::size_t> layer_counts(std::size_t count, int layers) {
  constexpr std::size_t kCycle = 4;
  const auto n = static_cast<std::size_t>(layers);
  const auto shares_before = [](std::size_t k) {  // 1 + 2 + 3 + 4 + 1 + ...
    const std::size_t rest = k % kCycle;
    return k / kCycle * (kCycle * (kCycle + 1) / 2) + rest * (rest + 1) / 2;
  };
  const double all = static_cast<double>(shares_before(n));
  std::vector<std::size_t> counts(n);
  std::size_t begin = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const double share = static_cast<double>(shares_before(k + 1)) / all;
    const std::size_t end = k + 1 == n ? count : static_cast<std::size_t>(static_cast<double>(count) * share);
    counts[k] = end - begin;
    begin = end;
  }
  return counts;
}

}  // namespace ouro::perf
