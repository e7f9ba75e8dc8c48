// The properties that must hold in every run, whatever was done to the job. Used by the run.
#pragma once
#include <string>
#include <vector>

#include "tests/simulate/job/rank.h"

namespace simulate {

/// Everything that is wrong, one line each.
std::vector<std::string> judge(const Scenario&, const std::vector<std::unique_ptr<Rank>>&, Nanos end);

}  // namespace simulate
