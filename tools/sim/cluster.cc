// Known clusters and their JSON form. Used by ouro-sim.
#include "tools/sim/cluster.h"

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

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

constexpr double kLeastRate = 1e-6;  // GB/s; also keeps beta finite

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

Status read_cluster(const Json& json, Cluster& out) {
  OURO_TRY(only_keys(
      json, {"name", "ranks_per_node", "intra", "inter", "board", "local_gb_per_s", "slots", "slot_bytes"},
      "the cluster"));
  if (json.contains("name") && !json["name"].is_string())
    return invalid("cluster: \"name\" must be a string");
  out.name = json.value("name", "unnamed");
  double ranks = 0, rate = 0, slots = out.slots;
  OURO_TRY(read_whole(json, "ranks_per_node", 0, 1 << 20, ranks));
  OURO_TRY(read_wire(json, "intra", out.intra));
  OURO_TRY(read_wire(json, "inter", out.inter));
  OURO_TRY(read_wire(json, "board", out.board));
  OURO_TRY(read_number(json, "local_gb_per_s", kLeastRate, rate));
  if (json.contains("slots")) OURO_TRY(read_whole(json, "slots", 2, 1024, slots));
  if (json.contains("slot_bytes")) OURO_TRY(read_whole(json, "slot_bytes", 1, 1e12, out.slot_bytes));
  out.ranks_per_node = static_cast<int>(ranks);
  out.gamma = 1e-9 / rate;
  out.slots = static_cast<int>(slots);
  return {};
}

}  // namespace

std::span<const Cluster> known_clusters() {
  static const std::array<Cluster, 3> clusters = {{
      {.name = "host",
       .intra = wire(0.25, 0.05, 20),
       .inter = wire(25, 2, 2.5),
       .board = wire(0.25, 0.05, 40),
       .gamma = 1e-9 / 50},
      {.name = "nvlink-ndr",
       .ranks_per_node = 8,
       .intra = wire(2, 0.1, 370),
       .inter = wire(5, 0.2, 47),
       .board = wire(2, 0.1, 370),
       .gamma = 1e-9 / 2000,
       .slot_bytes = 524288},
      {.name = "tcp-lan",
       .ranks_per_node = 1,
       .intra = wire(0.25, 0.05, 20),
       .inter = wire(25, 2, 2.5),
       .board = wire(0.25, 0.05, 40),
       .gamma = 1e-9 / 50},
  }};
  return clusters;
}

Result<Cluster> parse_cluster(const std::string& json_text) {
  const Json json = Json::parse(json_text, nullptr, false);
  if (json.is_discarded()) return invalid("cluster: not valid JSON");
  Cluster cluster;
  OURO_TRY(read_cluster(json, cluster));
  return cluster;
}

Result<Cluster> find_cluster(const std::string& name_or_path) {
  std::string names;
  for (const Cluster& c : known_clusters()) {
    if (c.name == name_or_path) return c;
    names += (names.empty() ? "" : ", ") + c.name;
  }
  std::ifstream file(name_or_path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return invalid("cluster \"" + name_or_path + "\" is neither a known name (" + names +
                   ") nor a readable file");
  }
  return parse_cluster(text.str());
}

}  // namespace ouro::sim
