// A described cluster: what links, boards and reductions cost. Input of the simulator, from a name or a JSON
// file.
#pragma once
#include <span>
#include <string>

#include "runtime/core/status.h"

namespace ouro::sim {

/// The cost of one directed link: a message arrives after alpha, and keeps the ports at both ends busy for
/// gap seconds and beta seconds a byte.
struct Wire {
  double alpha = 0, gap = 0, beta = 0;
  double busy(double bytes) const { return gap + bytes * beta; }
};

/// Ranks r*k .. r*k + k-1 share node r, k = ranks_per_node (0: all ranks share one node).
struct Cluster {
  std::string name;
  int ranks_per_node = 0;
  Wire intra, inter;  // links in a node and between nodes
  Wire board;         // reading what another rank of the node posted; between nodes, `inter` stands in
  double gamma = 0;   // seconds a byte of a local pass: reduction or copy
  int slots = 4;      // of each link
  double slot_bytes = 131072;

  int node_size(int ranks) const {
    return ranks_per_node == 0 || ranks_per_node > ranks ? ranks : ranks_per_node;
  }
};

/// "host", "nvlink-ndr" and "tcp-lan". Their figures are planning values, not measurements.
std::span<const Cluster> known_clusters();

/// A known cluster by name, else the JSON file at this path. Errors: invalid (no such name or file, or what
/// is wrong in the file). Keys: name, ranks_per_node, intra, inter, board (each {"alpha_us", "gap_us",
/// "gb_per_s"}, gap 0 by default), local_gb_per_s, slots, slot_bytes; unknown keys are refused.
Result<Cluster> find_cluster(const std::string& name_or_path);
Result<Cluster> parse_cluster(const std::string& json_text);

}  // namespace ouro::sim
