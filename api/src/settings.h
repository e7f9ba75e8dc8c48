// Finds the settings of this process that would make joining fail. Used by ouro-info.
#pragma once
#include <vector>

#include "runtime/core/status.h"

namespace ouro {

/// The errors of values that have the right type and range (env::valid) but are refused by the parsers that
/// run at joining: all such errors, whereas joining stops at the first. Reads the files that the
/// settings name.
std::vector<Status> refused_settings();

}  // namespace ouro
