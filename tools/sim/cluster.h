// A described cluster: the costs of links, staging buffers and reductions. Input of the simulator, from a
// name or a JSON file.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/calibration/record.h"
#include "runtime/core/status.h"

namespace ouro::sim {

/// The cost of one directed link in seconds: a message arrives after alpha and keeps the ports at both ends
/// busy for gap + beta per byte.
struct Wire {
  double alpha = 0, gap = 0, beta = 0;
  double busy(double bytes) const { return gap + bytes * beta; }
};

/// Ranks r*k .. r*k + k-1 share node r, k = ranks_per_node (0: all ranks share one node); or, node after
/// node, as many ranks as `nodes` says.
struct Cluster {
  std::string name;
  int ranks_per_node = 0;
  std::vector<int> nodes;  // if not empty: the number of ranks of each node; replaces ranks_per_node
  Wire intra, inter;       // links inside a node and between nodes
  Wire staging;            // reading what another rank of the node posted; between nodes `inter` is used
  bool node_port = false;  // between nodes: one port per node, shared by its ranks, instead of one per rank
  double gamma = 0;        // seconds per byte of a local pass: reduction or copy
  int slots = 4;           // slots of each link
  double slot_bytes = 131072;
  /// The record of a calibrated host: flows that the library's cost model knows take the time that this
  /// model predicts.
  std::optional<rt::Calibration> record = {};

  /// Number of ranks on the first node.
  int node_size(int ranks) const {
    if (!nodes.empty()) return nodes.front();
    return ranks_per_node == 0 || ranks_per_node > ranks ? ranks : ranks_per_node;
  }
  bool even() const {
    return std::adjacent_find(nodes.begin(), nodes.end(), std::not_equal_to()) == nodes.end();
  }
  /// The node of each rank.
  std::vector<int> node_of(int ranks) const;
};

/// "host", "nvlink-ndr" and "tcp-lan". Their figures are planning values, not measurements.
std::span<const Cluster> known_clusters();

/// tcp-lan with other nodes, each with one port: "2x4@1gbit" (two nodes of four ranks), "7+8@25gbit".
/// Errors: invalid.
Result<Cluster> parse_shape(const std::string& text);

/// A known cluster by name; else a shape if there is an '@'; else the JSON file at this path: a cluster, or
/// the output of `ouro-info --calibration --json`, which describes that host (Cluster::record). Errors:
/// invalid (no such name or file, or what is wrong in it). Keys: name, ranks_per_node or nodes (an array),
/// intra, inter, staging (each {"alpha_us", "gap_us", "gb_per_s"}, gap 0 by default), node_port,
/// local_gb_per_s, slots, slot_bytes; unknown keys are refused.
Result<Cluster> find_cluster(const std::string& name_or_path);
Result<Cluster> parse_cluster(const std::string& json_text);

}  // namespace ouro::sim
