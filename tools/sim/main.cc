// ouro-sim: predicts the cost of collectives on a described cluster, without any GPU or network.
// The prediction itself is in predict.cc.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/flow/list.h"
#include "runtime/core/collectives.h"
#include "tools/cli/errors.h"
#include "tools/cli/files.h"
#include "tools/cli/numbers.h"
#include "tools/cli/output.h"
#include "tools/sim/predict.h"

namespace {

using ouro::Collective;
using ouro::Result;
using ouro::Status;
using ouro::flow::Algorithm;
using ouro::sim::Cluster;
using ouro::sim::Job;
using ouro::sim::Method;
using ouro::sim::Prediction;
namespace tools = ouro::tools;

constexpr const char* kExamples = R"(Examples:
  ouro-sim all_reduce                                   all algorithms, 8 ranks, 1 MiB, on one host
  ouro-sim all_reduce --ranks 8:16384 --bytes 1M --algorithms ring,tree,halving,direct --cluster nvlink-ndr
  ouro-sim all_reduce --cluster 7+8@10gbit --bytes 1K,64M --algorithms ring,hierarchy,hierarchy_tree
  ouro-sim broadcast --ranks 12,100 --bytes 8,64K,1G --root 3 --cluster my-cluster.json --json out.json

Clusters: host, nvlink-ndr, tcp-lan (planning values, not measurements);
nodes with one network port each, 2x4@1gbit (two nodes of four ranks) or 7+8@25gbit;
a file of ouro-info --calibration --json, which stands for that host;
or a JSON file, where "nodes": [7, 8] may stand in place of "ranks_per_node", and "node_port": true says that
the ranks of a node share a port:
  {"name": "mine", "ranks_per_node": 4, "intra": {"alpha_us": 1, "gap_us": 0.1, "gb_per_s": 100},
   "inter": {"alpha_us": 4, "gb_per_s": 25}, "staging": {"alpha_us": 1, "gb_per_s": 100},
   "local_gb_per_s": 500, "slots": 4, "slot_bytes": 262144}
Where an algorithm reads staging buffers across nodes, the links between nodes stand in for them.

Exit: 0 predicted (points that are too large say so); 1 output could not be written; 2 wrong command line or cluster,
or no point predicted.)";

constexpr int kFailed = 1, kUsage = 2;
constexpr std::size_t kMostPoints = 10'000;

int refuse(const std::string& text, int code = kUsage) {
  tools::complain("ouro-sim: {}\n", text);
  return code;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t to = 0; to != std::string::npos; from = to + 1) {
    to = text.find(at, from);
    parts.push_back(text.substr(from, to == std::string::npos ? to : to - from));
  }
  return parts;
}

/// A whole number with an optional suffix K, M, G or T (binary); nullopt: not a number.
std::optional<std::int64_t> parse_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  const std::string suffix(end, text.data() + text.size());
  const std::size_t power = std::string_view(" KMGT").find(suffix.empty() ? ' ' : suffix[0]);
  if (suffix.size() > 1 || suffix == " " || power > 4 || value > (std::int64_t{1} << 50) >> (10 * power)) {
    return std::nullopt;
  }
  return value << (10 * power);
}

/// Keeps the first occurrence of each value.
template <class T>
std::vector<T> unique(std::vector<T> values) {
  auto end = values.begin();
  for (auto it = values.begin(); it != values.end(); ++it)
    if (std::find(values.begin(), end, *it) == end) std::swap(*end++, *it);
  values.erase(end, values.end());
  return values;
}

/// Parses "8,100" or "8:16384" (doubling), or both mixed.
Result<std::vector<std::int64_t>> parse_list(const std::string& option, const std::string& text) {
  std::vector<std::int64_t> out;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> ends = split(part, ':');
    const std::optional<std::int64_t> first = parse_number(ends.front()), last = parse_number(ends.back());
    if (!first || !last || ends.size() > 2 || *last < *first || (ends.size() == 2 && *first == 0)) {
      return ouro::invalid(
          fmt::format("{} {}: expected numbers (suffix K, M, G, T) or FROM:TO", option, text));
    }
    std::int64_t value = *first;
    for (; value < *last; value *= 2) out.push_back(value);
    out.push_back(*last);
    if (value > *last) out.back() = *last;
  }
  return unique(std::move(out));
}

/// The collectives that have a flow, in the order of the list of flows.
std::vector<Collective> predictable() {
  std::vector<Collective> all;
  ouro::flow::for_each_flow([&](Collective c, Algorithm, auto) {
    if (!ouro::traits_of(c).neighbours()) all.push_back(c);  // a job does not describe its neighbours' rows
  });
  return unique(std::move(all));
}

std::string predictable_names() {
  std::string names;
  for (const Collective c : predictable())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", ouro::name(c));
  return names;
}

std::string_view algorithm_of(const Job& job) { return ouro::flow::name(job.algorithm); }

/// One job for each algorithm, without sizes.
Result<std::vector<Job>> parse_algorithms(Collective collective, const std::string& text) {
  std::vector<Job> known, out;
  ouro::flow::for_each_flow([&](Collective c, Algorithm a, auto flow) {
    if (c == collective && !flow.kSwitched) known.push_back({.collective = c, .algorithm = a});
  });
  if (text == "all") return known;
  std::string names;
  for (const Job& job : known) names += fmt::format("{}{}", names.empty() ? "" : ", ", algorithm_of(job));
  for (const std::string& part : unique(split(text, ','))) {
    const auto job =
        std::find_if(known.begin(), known.end(), [&](const Job& j) { return algorithm_of(j) == part; });
    if (job == known.end()) {
      return ouro::invalid(fmt::format("--algorithms {}: {} has {}", part, ouro::name(collective), names));
    }
    out.push_back(*job);
  }
  return out;
}

struct Options {
  std::string collective = "all_reduce", ranks, bytes = "1M", algorithms = "all", cluster = "host", json;
  std::string method = "automatic";
  int root = 0;
  double wide = 1;
};

/// One JSON object for each point; refused points have the reason in "error".
nlohmann::ordered_json point_json(const Job& job, const Result<Prediction>& p) {
  nlohmann::ordered_json json = {
      {"algorithm", std::string(algorithm_of(job))}, {"ranks", job.ranks}, {"bytes", job.bytes}};
  if (!p) {
    json["error"] = p.status().failure()->text;
    return json;
  }
  json["time_us"] = p->seconds * 1e6;
  json["rounds"] = p->rounds;
  json["busiest_pair_bytes"] = p->busiest;
  json["busiest_node_bytes"] = p->busiest_node;
  json["intra_node_bytes"] = p->intra;
  json["inter_node_bytes"] = p->inter;
  json["simulated_ranks"] = p->simulated_ranks;
  json["extrapolated"] = p->extrapolated;
  if (p->by_record) json["by_record"] = true;
  return json;
}

void print_point(const Job& job, const Result<Prediction>& p, std::string_view remark) {
  const std::string_view algorithm = algorithm_of(job);
  if (!p) {
    tools::print("{:>7} {:>12.0f} {:<14} -  {}\n", job.ranks, job.bytes, algorithm,
                 p.status().failure()->text);
    return;
  }
  tools::print("{:>7} {:>12.0f} {:<14} {:>12.2f} {:>12.4g} {:>12.4g} {:>12.4g} {:>12.4g} {:>8}{}{}\n",
               job.ranks, job.bytes, algorithm, p->seconds * 1e6, p->busiest, p->busiest_node, p->intra,
               p->inter, p->simulated_ranks,
               p->by_record      ? "*"
               : p->extrapolated ? "+"
                                 : " ",
               remark);
}

int simulate(const Options& o) {
  const std::optional<Collective> collective = ouro::parse_collective(o.collective);
  const std::vector<Collective> known = predictable();
  if (!collective || std::find(known.begin(), known.end(), *collective) == known.end())
    return refuse(fmt::format("{}: no such collective; one of: {}", o.collective, predictable_names()));
  const char* const name = ouro::name(*collective);
  if (!ouro::traits_of(*collective).rooted() && o.root != 0)
    return refuse(fmt::format("--root {}: {} has no root", o.root, name));
  const Result<Cluster> cluster = ouro::sim::find_cluster(o.cluster);
  if (!cluster) return refuse(cluster.status().failure()->text);
  const Result<std::vector<Job>> algorithms = parse_algorithms(*collective, o.algorithms);
  if (!algorithms) return refuse(algorithms.status().failure()->text);
  const std::vector<int>& nodes = cluster->nodes;
  const std::string of_cluster =
      std::to_string(nodes.empty() ? 8 : std::accumulate(nodes.begin(), nodes.end(), 0));
  const Result<std::vector<std::int64_t>> ranks =
      parse_list("--ranks", o.ranks.empty() ? of_cluster : o.ranks);
  if (!ranks) return refuse(ranks.status().failure()->text);
  const Result<std::vector<std::int64_t>> sizes = parse_list("--bytes", o.bytes);
  if (!sizes) return refuse(sizes.status().failure()->text);
  if (ranks->size() * sizes->size() > kMostPoints) return refuse("too many points");
  for (const std::int64_t n : *ranks) {
    if (n < 1 || n > ouro::sim::kMaxRanks)
      return refuse(fmt::format("--ranks: 1 to {}", ouro::sim::kMaxRanks));
    if (o.root >= n) return refuse(fmt::format("--root {}: there are {} ranks", o.root, n));
  }
  const Method method = o.method == "full"             ? Method::full
                        : o.method == "representative" ? Method::representative
                                                       : Method::automatic;

  const bool quiet = o.json == "-";
  if (!quiet) {
    tools::print(
        "# {} on {}; bytes of the whole buffer; simulated: ranks that were run (+: steady state continued; "
        "*: the library's model of this host, with what the application's next accesses lose)\n",
        name, cluster->name);
    tools::print("{:>7} {:>12} {:<14} {:>12} {:>12} {:>12} {:>12} {:>12} {:>9}\n", "ranks", "bytes",
                 "algorithm", "time_us", "pair_max_B", "node_max_B", "intra_B", "inter_B", "simulated");
  }
  int predicted = 0;
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const std::int64_t n : *ranks) {
    for (const std::int64_t bytes : *sizes) {
      std::vector<std::pair<Job, Result<Prediction>>> row;
      double best = INFINITY;
      for (Job job : *algorithms) {
        job.ranks = static_cast<int>(n), job.root = o.root, job.wide_ratio = o.wide;
        job.bytes = *collective == Collective::barrier ? 0 : static_cast<double>(bytes);
        row.emplace_back(job, ouro::sim::predict(*cluster, job, method));
        if (row.back().second) best = std::min(best, row.back().second->seconds);
      }
      const auto is_best = [best](const auto& point) {
        return point.second && point.second->seconds == best;
      };
      const auto ties = std::count_if(row.begin(), row.end(), is_best);
      for (const auto& point : row) {
        const auto& [job, p] = point;
        if (p) ++predicted;
        const bool marked = row.size() > 1 && is_best(point);
        if (!quiet) print_point(job, p, !marked ? "" : ties > 1 ? " as fast as any" : " fastest");
        points.push_back(point_json(job, p));
      }
    }
  }
  const nlohmann::ordered_json report = {
      {"collective", name}, {"cluster", cluster->name}, {"wide_ratio", o.wide}, {"points", points}};
  const std::string text = report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (quiet) tools::print_text(text);
  if (!o.json.empty() && !quiet)
    if (const Status written = tools::write_file(o.json, text); !written)
      return refuse(fmt::format("--json {}", written.failure()->text), kFailed);
  if (predicted == 0) return refuse("nothing could be predicted");
  return 0;
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Predicts what collectives cost on a described cluster.", "ouro-sim");
  app.footer(kExamples);
  tools::name_in_errors(app);
  app.set_version_flag("--version", "ouro-sim " OURO_VERSION);
  app.add_option("collective", o.collective, "One of: " + predictable_names())->capture_default_str();
  app.add_option("-n,--ranks", o.ranks,
                 "Numbers of ranks: a list, or FROM:TO by doubling (default: "
                 "those of the cluster's nodes, or 8)");
  app.add_option("-b,--bytes", o.bytes, "Bytes of the whole buffer, as --ranks; suffix K, M, G, T")
      ->capture_default_str();
  app.add_option("-a,--algorithms", o.algorithms, "Comma-separated names, or all")->capture_default_str();
  app.add_option("-c,--cluster", o.cluster, "Name, nodes and rate, or JSON file")->capture_default_str();
  app.add_option("--root", o.root, "Root of broadcast, reduce, gather, scatter")
      ->check(tools::at_least(0))
      ->capture_default_str();
  app.add_option("--wide", o.wide, "Size of a partial sum over an element: 2 for 16-bit floats")
      ->check(tools::between(1.0, 16.0))
      ->capture_default_str();
  app.add_option(
         "--method", o.method,
         "full: every rank is simulated; representative: one node's, and all others taken to move like "
         "them; automatic: full up to 1024 ranks, representative above where the algorithm allows it")
      ->check(CLI::IsMember({"automatic", "full", "representative"}))
      ->capture_default_str();
  app.add_option("--json", o.json,
                 "Write the points to this file; -: to standard output in place of the table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return tools::answer(app, e);
  }
  return simulate(o);
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("ouro-sim", [&] { return run(argc, argv); });
}
