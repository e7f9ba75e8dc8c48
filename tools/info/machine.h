// Packages, cores, caches and memory nodes of this machine, by hwloc. Used by ouro-info.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::info {

struct Cache {
  std::string name;         ///< "L1d", "L2", "L3"
  std::uint64_t bytes = 0;  ///< size of one
  int count = 0;
  int cores_each = 0;  ///< cores that share one cache
};

struct Machine {
  std::string model;  ///< model of the processor; "" if unknown
  int packages = 0, cores = 0, threads = 0, numa_nodes = 0;
  int usable_threads = 0;  ///< hardware threads that this process may run on
  std::vector<Cache> caches = {};
  std::string tree = {};  ///< drawing: one object per line, children indented, equal siblings on one line
};

/// Reads this machine, or the one that `synthetic` describes ("pack:2 [numa(memory=64GB)] l2:4 core:2
/// pu:2"). The variables HWLOC_XMLFILE and HWLOC_SYNTHETIC also replace this machine. Errors: invalid
/// (description), resource.
Result<Machine> read_machine(const std::string& synthetic = "");

/// "32 KiB", "1.5 GiB".
std::string human_bytes(std::uint64_t bytes);

}  // namespace ouro::info
