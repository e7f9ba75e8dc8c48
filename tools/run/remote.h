// A job over several hosts, as the launcher sees it: one agent a host. Used by launcher.cc.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tools/run/launcher.h"
#include "tools/run/signals.h"

namespace ouro::run {

/// Implements run_ranks for non-empty options.hosts.
Result<int> run_on_hosts(const RunOptions& options, const std::vector<std::string>& argv, Signals& signals);

}  // namespace ouro::run
