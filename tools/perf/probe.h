// The state of the machine during a run: how long a hand-off between two cores takes, and how much processor
// time others use. Used by main.cc and the rank program for --verdict.
#pragma once
#include <string>

#include "tools/measure/figures.h"

namespace ouro::perf {

/// Time for one cache line to move from one core to another, in ns: best of several batches. 0: there is
/// only one core.
double handoff_ns();
/// For example "hand-off between two cores 45 ns (they share a cache)".
std::string describe_handoff(double ns);

using measure::host_cpu_seconds;
using measure::process_cpu_seconds;
/// Number of processors that this host has online.
int host_cpus();
/// Largest resident set of this process in bytes.
double peak_resident_bytes();
/// "AMD EPYC ...", or "unknown processor".
std::string cpu_name();

}  // namespace ouro::perf
