// Launchers, and which of those that have left variables has started this process. Used by launch.cc.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/join/variables.h"

namespace ouro::launchers {

/// The names that this environment really uses: PMIx names a rank and leaves the rest to its host launcher.
struct Found {
  std::string launcher, rank, size, local_rank, local_size, node, restarts;
};

/// All launchers whose variables are there, in the order of the table.
std::vector<Found> find(const Variables&);
/// "slurm 3/4": whose rank this process is, as one launcher says.
std::string claim(const Variables&, const Found&);
/// Whose variables count. None: this process is alone. Errors: invalid (they disagree, or OURO_LAUNCHER names
/// one that has left none).
Result<std::optional<Found>> choose(const Variables&);

}  // namespace ouro::launchers
