// The doctor: every known failure of the surroundings, whether it would strike here, and its fix. Pure.
// Used by ouro-info --doctor and its brief report.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/info/facts.h"

namespace ouro::info {

enum class Verdict : std::uint8_t { ok, note, warning, broken };
const char* name(Verdict);

struct Check {
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string found;  ///< what is the case here: need and have, where there are numbers
  std::string fix;    ///< what to do; "" if nothing
};

/// What one rank of a job of `ranks` on this host takes.
struct Needs {
  std::uint64_t files = 0;        ///< open files of each rank
  std::uint64_t link_memory = 0;  ///< bytes of the links of one group of all ranks, shared by them
};
Needs needs_of(int ranks, std::uint32_t slot_bytes);

/// Checks for a job of `ranks` ranks on this host, as processes.
std::vector<Check> examine(const Facts&, int ranks, const Needs&);

/// The worst of them.
Verdict worst(const std::vector<Check>&);

}  // namespace ouro::info
