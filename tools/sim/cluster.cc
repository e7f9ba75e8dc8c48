// Known clusters and their JSON form. Used by ouro-sim.
#include "tools/sim/cluster.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/calibration/choose.h"
#include "tools/cli/files.h"

namespace ouro::sim {
namespace {

using Json = nlohmann::json;

constexpr double kMicro = 1e-6;
Wire wire(double alpha_us, double gap_us, double gb_per_s) {
  return {alpha_us * kMicro, gap_us * kMicro, 1e-9 / gb_per_s};
}

Status only_keys(const Json& object, std::initializer_list<const char*> known, const std::string& where) {
  if (!object.is_object()) return invalid("cluster: " + where + " must be an object");
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const char* k : known) found = found || key == k;
    if (!found) return invalid("cluster: unknown key \"" + key + "\" in " + where);
  }
  return {};
}

Status read_number(const Json& object, const char* key, double least, double& out) {
  if (!object.contains(key)) return invalid(std::string("cluster: \"") + key + "\" is missing");
  if (!object[key].is_number()) return invalid(std::string("cluster: \"") + key + "\" must be a number");
  out = object[key].get<double>();
  if (std::isfinite(out) && out >= least) return {};
  return invalid(std::string("cluster: \"") + key + "\" is out of range");
}

constexpr int kMostRanks = 1 << 20;
constexpr double kLeastRate = 1e-6;  // GB/s; the minimum also keeps beta finite

Status read_wire(const Json& object, const char* key, Wire& out) {
  if (!object.contains(key)) return invalid(std::string("cluster: \"") + key + "\" is missing");
  OURO_TRY(only_keys(object[key], {"alpha_us", "gap_us", "gb_per_s"}, std::string("\"") + key + "\""));
  double alpha = 0, gap = 0, rate = 0;
  OURO_TRY(read_number(object[key], "alpha_us", 0, alpha));
  OURO_TRY(read_number(object[key], "gb_per_s", kLeastRate, rate));
  if (object[key].contains("gap_us")) OURO_TRY(read_number(object[key], "gap_us", 0, gap));
  out = wire(alpha, gap, rate);
  return {};
}

Status read_whole(const Json& object, const char* key, double least, double most, double& out) {
  OURO_TRY(read_number(object, key, least, out));
  if (out == std::floor(out) && out <= most) return {};
  return invalid(std::string("cluster: \"") + key + "\" must be a whole number in range");
}

Status read_nodes(const Json& list, std::vector<int>& out) {
  double ranks = 0;
  for (const Json& size : list) {
    const bool whole =
        size.is_number_integer() && size.get<double>() >= 1 && size.get<double>() <= kMostRanks;
    if (!list.is_array() || !whole || (ranks += size.get<double>()) > kMostRanks)
      return invalid("cluster: \"nodes\" must be whole numbers, at least 1");
    out.push_back(size.get<int>());
  }
  if (out.empty()) return invalid("cluster: \"nodes\" must be an array that is not empty");
  return {};
}

Status read_cluster(const Json& json, Cluster& out) {
  OURO_TRY(only_keys(json,
                     {"name", "ranks_per_node", "nodes", "intra", "inter", "staging", "board", "node_port",
                      "local_gb_per_s", "slots", "slot_bytes"},
                     "the cluster"));
  if (json.contains("name") && !json["name"].is_string())
    return invalid("cluster: \"name\" must be a string");
  out.name = json.value("name", "unnamed");
  double ranks = 0, rate = 0, slots = out.slots;
  if (json.contains("nodes")) {
    if (json.contains("ranks_per_node"))
      return invalid("cluster: \"nodes\" and \"ranks_per_node\" exclude each other");
    OURO_TRY(read_nodes(json["nodes"], out.nodes));
  } else {
    OURO_TRY(read_whole(json, "ranks_per_node", 0, kMostRanks, ranks));
  }
  if (json.contains("node_port") && !json["node_port"].is_boolean())
    return invalid("cluster: \"node_port\" must be true or false");
  out.node_port = json.value("node_port", false);
  OURO_TRY(read_wire(json, "intra", out.intra));
  OURO_TRY(read_wire(json, "inter", out.inter));
  // "board" is the older name.
  OURO_TRY(read_wire(json, json.contains("board") ? "board" : "staging", out.staging));
  OURO_TRY(read_number(json, "local_gb_per_s", kLeastRate, rate));
  if (json.contains("slots")) OURO_TRY(read_whole(json, "slots", 2, 1024, slots));
  if (json.contains("slot_bytes")) OURO_TRY(read_whole(json, "slot_bytes", 1, 1e12, out.slot_bytes));
  out.ranks_per_node = static_cast<int>(ranks);
  out.gamma = 1e-9 / rate;
  out.slots = static_cast<int>(slots);
  return {};
}

/// One host, with the figures by which its copies and algorithms are chosen: those of 64 KiB between the two
/// cores farthest apart.
Cluster cluster_of(const rt::Calibration& c) {
  constexpr std::size_t kSize = 1;
  const rt::PairCosts& far = c.farthest();
  const rt::CopyCost& copy = far.copies[kSize][static_cast<std::size_t>(rt::slot_kinds_by(c)[kSize])];
  const auto bytes = static_cast<double>(kernels::kCopySizes[kSize]);
  constexpr double kNano = 1e-9;
  Cluster out = *find_cluster("host");
  out.name = "calibration";
  out.intra.alpha = out.staging.alpha = far.handoff * kNano;
  out.intra.gap = out.staging.gap = 0;
  out.staging.beta = copy.read * kNano / bytes;
  out.intra.beta = (copy.read + copy.write) * kNano / bytes;
  out.gamma = copy.write * kNano / bytes;
  out.record = c;
  return out;
}

}  // namespace

std::span<const Cluster> known_clusters() {
  static const std::array<Cluster, 3> clusters = {{
      {.name = "host",
       .intra = wire(0.25, 0.05, 20),
       .inter = wire(25, 2, 2.5),
       .staging = wire(0.25, 0.05, 40),
       .gamma = 1e-9 / 50},
      {.name = "nvlink-ndr",
       .ranks_per_node = 8,
       .intra = wire(2, 0.1, 370),
       .inter = wire(5, 0.2, 47),
       .staging = wire(2, 0.1, 370),
       .gamma = 1e-9 / 2000,
       .slot_bytes = 524288},
      {.name = "tcp-lan",
       .ranks_per_node = 1,
       .intra = wire(0.25, 0.05, 20),
       .inter = wire(25, 2, 2.5),
       .staging = wire(0.25, 0.05, 40),
       .gamma = 1e-9 / 50},
  }};
  return clusters;
}

Result<Cluster> parse_cluster(const std::string& json_text) {
  const Json json = Json::parse(json_text, nullptr, false);
  if (json.is_discarded()) return invalid("cluster: not valid JSON");
  if (json.is_object() && json.contains("ouro_calibration")) {
    OURO_ASSIGN(const rt::Calibration record, rt::parse_calibration(json_text));
    if (!record.complete()) return invalid("cluster: the calibration lacks figures");
    return cluster_of(record);
  }
  Cluster cluster;
  OURO_TRY(read_cluster(json, cluster));
  return cluster;
}

std::vector<int> Cluster::node_of(int ranks) const {
  std::vector<int> of;
  if (!nodes.empty()) {
    for (std::size_t m = 0; m < nodes.size(); ++m)
      of.insert(of.end(), static_cast<std::size_t>(nodes[m]), static_cast<int>(m));
    return of;
  }
  for (int r = 0; r < ranks; ++r) of.push_back(r / node_size(ranks));
  return of;
}

Result<Cluster> parse_shape(const std::string& text) {
  const Status wrong =
      invalid("cluster \"" + text + "\": expected NODESxRANKS@RATEgbit or RANKS+RANKS+...@RATEgbit");
  const std::size_t at = text.find('@');
  const std::string shape = text.substr(0, at), rate = at == std::string::npos ? "" : text.substr(at + 1);
  // Reads a number and advances; 0: there is none.
  const auto number = [](const std::string& from, std::size_t& next, auto value) {
    const auto [end, error] = std::from_chars(from.data() + next, from.data() + from.size(), value);
    next = static_cast<std::size_t>(end - from.data());
    return error == std::errc() ? value : decltype(value){0};
  };
  Cluster c = *find_cluster("tcp-lan");
  c.name = text;
  c.node_port = true;
  std::size_t next = 0;
  const double gbit = number(rate, next, 0.0);
  if (!(gbit >= kLeastRate && gbit <= 1e6) || rate.substr(next) != "gbit") return wrong;
  c.inter.beta = 1e-9 / (gbit / 8);
  std::int64_t ranks = 0;
  for (next = 0;; ++next) {
    const int size = number(shape, next, 0);
    if (size < 1 || (ranks += size) > kMostRanks) return wrong;
    c.nodes.push_back(size);
    if (next == shape.size()) break;
    if (shape[next] == 'x' && c.nodes.size() == 1) {
      const int each = number(shape, ++next, 0);
      if (each < 1 || each > kMostRanks / size || next != shape.size()) return wrong;
      c.nodes.assign(static_cast<std::size_t>(size), each);
      break;
    }
    if (shape[next] != '+') return wrong;
  }
  return c;
}

Result<Cluster> find_cluster(const std::string& name_or_path) {
  std::string names;
  for (const Cluster& c : known_clusters()) {
    if (c.name == name_or_path) return c;
    names += (names.empty() ? "" : ", ") + c.name;
  }
  if (name_or_path.find('@') != std::string::npos) return parse_shape(name_or_path);
  constexpr std::size_t kMostBytes = 16u << 20;  // enough for a list of a million nodes
  const Result<std::string> text = tools::read_file(name_or_path, kMostBytes);
  if (!text.ok())
    return invalid("cluster \"" + name_or_path + "\" is neither a known name (" + names +
                   "), nor nodes and rate (2x4@10gbit), nor a readable file (" +
                   text.status().failure()->text + ")");
  return parse_cluster(*text);
}

}  // namespace ouro::sim
