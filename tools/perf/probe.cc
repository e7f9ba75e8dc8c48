// Probes of the machine; Linux only, like the rest of ouro. Used by main.cc and the rank program
// for --verdict.
#include "tools/perf/probe.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

namespace ouro::perf {
namespace {

constexpr double kNearNs = 120;  // two cores that share a cache are faster than this

}  // namespace

double handoff_ns() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return 0;
  std::vector<int> cpus;
  for (int c = 0; c < CPU_SETSIZE && cpus.size() < 2; ++c)
    if (CPU_ISSET(c, &allowed)) cpus.push_back(c);

  return measure::handoff_ns(cpus[0], cpus[1]);
}

std::string describe_handoff(double ns) {
  if (ns == 0) return "one core only";
  return fmt::format("hand-off between two cores {:.0f} ns ({})", ns,
                     ns < kNearNs ? "near: they share a cache" : "far: they share no cache");
}

int host_cpus() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

double peak_resident_bytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) * 1024;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown processor";
}

}  // namespace ouro::perf
