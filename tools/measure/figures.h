// Helpers for every measurement: the median, processor time, the hand-off time between two cores. Used by
// ouro-perf and by the benches.
#pragma once
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <vector>

namespace ouro::measure {

/// 0 for an empty vector.
inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const std::size_t half = v.size() / 2;
  return v.size() % 2 != 0 ? v[half] : (v[half - 1] + v[half]) / 2;
}

/// Processor time of everything on this machine since boot, in steps of 10 ms; 0 if it is not available.
inline double host_cpu_seconds() {
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  std::FILE* file = std::fopen("/proc/stat", "re");
  if (file == nullptr) return 0;
  const int read = std::fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &iowait,
                               &irq, &softirq);
  std::fclose(file);
  return read < 3 ? 0 : (user + nice + system + irq + softirq) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

inline double cpu_seconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
inline double process_cpu_seconds() { return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID); }
inline double thread_cpu_seconds() { return cpu_seconds(CLOCK_THREAD_CPUTIME_ID); }

/// Pins the calling thread. If that is refused the thread is not pinned, which makes a measurement less
/// precise, not wrong.
inline void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  (void)::sched_setaffinity(0, sizeof set, &set);
}

/// Spins until the line holds `want`; gives up after some milliseconds, so that a lost core cannot hang
/// the program.
inline bool await(const std::atomic<int>& line, int want) {
  for (int spins = 0; spins < 10'000'000; ++spins) {
    // Pairs with the release stores in handoff_ns.
    if (line.load(std::memory_order_acquire) == want) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }
  return false;
}

/// Time for a cache line to move from core a to core b, in ns: best of 20 batches of 100. 0 if a thread
/// did not run.
inline double handoff_ns(int a, int b) {
  constexpr int kBatches = 20, kRounds = 100;
  using Clock = std::chrono::steady_clock;
  struct alignas(128) {
    std::atomic<int> value{0};
  } line;
  double best = 0;
  {
    const std::jthread peer([&] {
      pin(b);
      for (int i = 0; i < kBatches * kRounds; ++i) {
        if (!await(line.value, 2 * i + 1)) return;
        // Pairs with the acquire load in await in the other thread.
        line.value.store(2 * i + 2, std::memory_order_release);
      }
    });
    const std::jthread self([&] {
      pin(a);
      for (int batch = 0; batch < kBatches; ++batch) {
        const Clock::time_point begin = Clock::now();
        for (int i = batch * kRounds; i < (batch + 1) * kRounds; ++i) {
          // Pairs with the acquire load in await in the peer.
          line.value.store(2 * i + 1, std::memory_order_release);
          if (!await(line.value, 2 * i + 2)) return;
        }
        const double ns =
            std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / (2 * kRounds);
        best = best == 0 ? ns : std::min(best, ns);
      }
    });
  }
  return best;
}

}  // namespace ouro::measure
