// What the machine is like while we measure: how far apart two cores are, and who else uses the processors.
// Used by main.cc and the rank program for --verdict.
#pragma once
#include <string>

#include "tools/measure/figures.h"

namespace ouro::perf {

/// Time for one cache line to get from one core to another, in ns: best of several batches. 0: only one core.
double handoff_ns();
/// "hand-off between two cores 45 ns (they share a cache)".
std::string describe_handoff(double ns);

using measure::host_cpu_seconds;
using measure::process_cpu_seconds;
/// Processors that this host has online.
int host_cpus();
/// Largest resident set of this process in bytes.
double peak_resident_bytes();
/// "AMD EPYC ...", or "unknown processor".
std::string cpu_name();

}  // namespace ouro::perf
