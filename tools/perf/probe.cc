// Probes of the machine; Linux only, as the rest.
// Used by main.cc and the rank program for --verdict.
#include "tools/perf/probe.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace ouro::perf {
namespace {

constexpr int kBatches = 20, kRounds = 100;
constexpr double kNearNs = 120;  // two cores that share a cache are faster than this

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // A refused pin leaves the thread where it is: the probe is then rougher, not wrong.
  (void)sched_setaffinity(0, sizeof set, &set);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until the line holds `want`; gives up after some milliseconds, so that a lost core cannot hang it.
bool await(const std::atomic<int>& line, int want) {
  for (int spins = 0; spins < 10'000'000; ++spins) {
    if (line.load(std::memory_order_acquire) == want)
      return true;  // pairs with the peer's store in handoff_ns
    pause();
  }
  return false;
}

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

}  // namespace

double handoff_ns() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return 0;
  std::vector<int> cpus;
  for (int c = 0; c < CPU_SETSIZE && cpus.size() < 2; ++c)
    if (CPU_ISSET(c, &allowed)) cpus.push_back(c);

  struct alignas(128) Line {
    std::atomic<int> value{0};
  } line;
  double best = 0;
  {
    std::jthread peer([&] {
      pin(cpus[1]);
      for (int i = 0; i < kBatches * kRounds; ++i) {
        if (!await(line.value, 2 * i + 1)) return;
        line.value.store(2 * i + 2, std::memory_order_release);  // pairs with await in the other thread
      }
    });
    std::jthread self([&] {
      pin(cpus[0]);
      for (int b = 0; b < kBatches; ++b) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = b * kRounds; i < (b + 1) * kRounds; ++i) {
          line.value.store(2 * i + 1, std::memory_order_release);  // pairs with await in the peer
          if (!await(line.value, 2 * i + 2)) return;
        }
        const std::chrono::duration<double, std::nano> t = std::chrono::steady_clock::now() - begin;
        const double ns = t.count() / (2 * kRounds);
        best = best == 0 ? ns : std::min(best, ns);
      }
    });
  }
  return best;
}

std::string describe_handoff(double ns) {
  if (ns == 0) return "one core only";
  return fmt::format("hand-off between two cores {:.0f} ns ({})", ns,
                     ns < kNearNs ? "near: they share a cache" : "far: they share no cache");
}

double host_cpu_seconds() {
  std::ifstream stat("/proc/stat");
  std::string line, cpu;
  std::getline(stat, line);
  std::istringstream fields(line);
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  fields >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
  return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double process_cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return seconds(u.ru_utime) + seconds(u.ru_stime);
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
