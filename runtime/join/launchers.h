// Finds the launcher that started this process among those whose variables are set. Used by launch.cc.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/join/variables.h"

namespace ouro::launchers {

/// The names of variables that this environment uses: PMIx names a rank and leaves the rest to its
/// host launcher.
struct Found {
  std::string launcher, rank, size, local_rank, local_size, node, restarts;
};

/// All launchers whose variables are set, in the order of the table.
std::vector<Found> find(const Variables&);
/// Rank and size of this process according to one launcher: "slurm 3/4".
std::string claim(const Variables&, const Found&);
/// The launcher whose variables count; nullopt: this process is alone. Errors: invalid (launchers disagree,
/// or OURO_LAUNCHER names one whose variables are not set).
Result<std::optional<Found>> choose(const Variables&);

}  // namespace ouro::launchers
