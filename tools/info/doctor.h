// The doctor: every known problem of the environment, whether it would occur here, and its fix. Pure. Used by
// ouro-info --doctor and its brief report.
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
  std::string found;  ///< the state found here: what is needed and what is available, if these are numbers
  std::string fix;    ///< what to do; "" if there is nothing to do
};

/// The resources that one rank of a job of `ranks` on this host needs.
struct Needs {
  std::uint64_t files = 0;        ///< open files of each rank
  std::uint64_t link_memory = 0;  ///< bytes of the links of one group of all ranks, which share them
};
Needs needs_of(int ranks, std::uint32_t slot_bytes);

/// Runs all checks for a job of `ranks` ranks, as processes, on this host.
std::vector<Check> examine(const Facts&, int ranks, const Needs&);

/// The worst verdict among the checks.
Verdict worst(const std::vector<Check>&);

}  // namespace ouro::info
