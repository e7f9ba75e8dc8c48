// Which settings of this process a rank that joins would refuse. Used by ouro-info.
#pragma once
#include <vector>

#include "runtime/core/status.h"

namespace ouro {

/// Of the values that have the right type and range (env::valid), what the parsers that run at joining say:
/// of all of them, where joining stops at the first. Reads the files that they name.
std::vector<Status> refused_settings();

}  // namespace ouro
