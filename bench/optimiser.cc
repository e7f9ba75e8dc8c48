// GB/s of the fused optimiser steps compared with the limit, an in-place stream of the same reads and writes,
// and with the same steps as one pass for each operation. Run by hand: bin/bench_optimiser [rounds] [million
// elements]
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "kernels/arith/optim.h"
#include "kernels/host/host_job.h"
#include "kernels/host/host_loops.h"
#include "kernels/host/optim.h"
#include "tools/measure/figures.h"

namespace ouro::kernels {
namespace {

using Clock = std::chrono::steady_clock;
using measure::median;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
/// One thread's part: never shared, first touched by its owner.
struct Part {
  std::size_t count;
  std::vector<float> p, g, m, v, a, comm, t, u;
  std::vector<std::uint16_t> p16, g16;
  std::int64_t step = 1;

  explicit Part(std::size_t n) : count(n), p(n), g(n), m(n), v(n), a(n), comm(n), t(n), u(n), p16(n), g16(n) {
    std::minstd_rand random(7);
    for (std::size_t i = 0; i < n; ++i) {
      // The moments start near the values at which these gradients keep them, far from the subnormals.
      g[i] = 0.1f + static_cast<float>(random() % 4096) / 4096;
      p[i] = comm[i] = 1 + g[i];
      m[i] = g[i];
      v[i] = g[i] * g[i];
      g16[i] = arith::narrow<arith::BFloat16>(g[i]).bits;
    }
  }
  Parameters f32() { return {DType::f32, p.data(), g.data(), nullptr, count}; }
  Parameters bf16() { return {DType::bf16, p16.data(), g16.data(), p.data(), count}; }
};

constexpr AdamOptions kAdamW{.lr = 1e-4, .weight_decay = 0.01, .decoupled = true};

void must(const Result<Report>& r) {
  if (!r.ok() || !r->finite) std::abort();
}

// ---- the limits: in place, as many arrays read and written, one addition for each element ----------

template <class F>
inline void each(std::size_t n, F&& f) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < n; ++i) f(i);
}
void stream_4r3w(Part& x) {
  float *p = x.p.data(), *m = x.m.data(), *v = x.v.data();
  const float* g = x.g.data();
  const float tiny = 1e-9f;
  each(x.count, [=](std::size_t i) {
    const float d = g[i] * tiny;
    p[i] += d, m[i] += d, v[i] += d;
  });
}
void stream_5r4w(Part& x) {
  float *p = x.p.data(), *m = x.m.data(), *v = x.v.data(), *comm = x.comm.data();
  const float* g = x.g.data();
  const float tiny = 1e-9f;
  each(x.count, [=](std::size_t i) {
    const float d = g[i] * tiny;
    p[i] += d, m[i] += d, v[i] += d, comm[i] += d;
  });
}

// ---- one pass for each operation, as in libraries without fused kernels ----------------------------

struct Passes {
  float decay, b1, b2, size, root2, eps;
  explicit Passes(std::int64_t updates)
      : decay(static_cast<float>(1 - kAdamW.lr * kAdamW.weight_decay)),
        b1(static_cast<float>(kAdamW.beta1)),
        b2(static_cast<float>(kAdamW.beta2)),
        size(static_cast<float>(kAdamW.lr / (1 - arith::power(kAdamW.beta1, updates)))),
        root2(static_cast<float>(std::sqrt(1 - arith::power(kAdamW.beta2, updates)))),
        eps(static_cast<float>(kAdamW.eps)) {}
};
/// p -= size * m / (sqrt(v) / root2 + eps), five passes through t.
void move_in_passes(const Passes& c, std::size_t n, float* p, const float* m, const float* v, float* t) {
  each(n, [=](std::size_t i) { t[i] = std::sqrt(v[i]); });
  each(n, [=](std::size_t i) { t[i] /= c.root2; });
  each(n, [=](std::size_t i) { t[i] += c.eps; });
  each(n, [=](std::size_t i) { t[i] = m[i] / t[i]; });
  each(n, [=](std::size_t i) { p[i] -= c.size * t[i]; });
}
void adamw_in_passes(Part& x) {
  const Passes c(x.step++);
  float *p = x.p.data(), *m = x.m.data(), *v = x.v.data(), *t = x.t.data();
  const float* g = x.g.data();
  each(x.count, [=](std::size_t i) { p[i] *= c.decay; });
  each(x.count, [=](std::size_t i) { m[i] = c.b1 * m[i] + (1 - c.b1) * g[i]; });
  each(x.count, [=](std::size_t i) { v[i] *= c.b2; });
  each(x.count, [=](std::size_t i) { v[i] += (1 - c.b2) * (g[i] * g[i]); });
  move_in_passes(c, x.count, p, m, v, t);
}
/// K = 4 steps.
void accum_in_passes(Part& x) {
  const Passes c(x.step++);
  float *p = x.p.data(), *m = x.m.data(), *v = x.v.data(), *a = x.a.data(), *t = x.t.data(), *u = x.u.data();
  const float* g = x.g.data();
  const std::size_t n = x.count;
  for (int k = 0; k < 4; ++k) {
    each(n, [=](std::size_t i) { p[i] *= c.decay; });
    each(n, [=](std::size_t i) { a[i] += 0.25f * g[i]; });
    each(n, [=](std::size_t i) { u[i] = m[i] + (1 - c.b1) * g[i]; });
    each(n, [=](std::size_t i) { t[i] = v[i] + (1 - c.b2) * (g[i] * g[i]); });
    move_in_passes(c, n, p, u, t, t);
  }
  each(n, [=](std::size_t i) { m[i] += (1 - c.b1) * a[i]; });
  each(n, [=](std::size_t i) { m[i] *= c.b1; });
  each(n, [=](std::size_t i) { v[i] += (1 - c.b2) * (a[i] * a[i]); });
  each(n, [=](std::size_t i) { v[i] *= c.b2; });
  each(n, [=](std::size_t i) { a[i] = 0; });
}
void mix_in_passes(Part& x) {
  float *p = x.p.data(), *comm = x.comm.data();
  each(x.count, [=](std::size_t i) { p[i] *= 0.5f; });
  each(x.count, [=](std::size_t i) { p[i] += comm[i]; });
  must(adam(x.f32(), x.m.data(), x.v.data(), kAdamW, x.step++));
  each(x.count, [=](std::size_t i) { comm[i] = p[i]; });
  each(x.count, [=](std::size_t i) { comm[i] *= 0.5f; });
}

// ---- the fused steps ------------------------------------------------------------------------------

void adamw(Part& x) { must(adam(x.f32(), x.m.data(), x.v.data(), kAdamW, x.step++)); }
void adamw_bf16(Part& x) { must(adam(x.bf16(), x.m.data(), x.v.data(), kAdamW, x.step++)); }
void adamw_mixed(Part& x) {
  const Exchange exchange{x.comm.data(), x.comm.data(), {.keep = 0.5, .take = 1, .send = 0.5}};
  must(adam(x.f32(), x.m.data(), x.v.data(), kAdamW, x.step++, {.exchange = &exchange}));
}
void accum_adamw(Part& x) {  // K = 4 steps: 24 + 28 + 28 + 32 bytes
  x.step = (x.step + 3) / 4 * 4 + 1;
  for (int k = 0; k < 4; ++k)
    must(accum_adam(x.f32(), x.m.data(), x.v.data(), x.a.data(), {.adam = kAdamW}, x.step++));
}
void read_gradients(Part& x) {
  const auto found = survey(DType::f32, x.g.data(), x.count);
  if (!found.ok() || !found->finite) std::abort();
}

struct Case {
  const char* name;
  const char* isa;  // of ouro's loops; null: does not use them
  int bytes;        // a parameter, read and written, of the fused form
  int steps;
  void (*run)(Part&);
  std::size_t against;  // position of the case that is its limit or its fused form
};
constexpr std::size_t kLimit = 0, kLimit36 = 1, kBest = 2, kBestAccum = 6, kBestMixed = 8;
constexpr Case kCases[] = {
    {"in-place stream 4R3W", nullptr, 28, 1, stream_4r3w, kLimit},
    {"in-place stream 5R4W", nullptr, 36, 1, stream_5r4w, kLimit36},
    {"AdamW fp32", "avx512", 28, 1, adamw, kLimit},
    {"AdamW fp32", "avx2", 28, 1, adamw, kLimit},
    {"AdamW fp32", "baseline", 28, 1, adamw, kLimit},
    {"AdamW fp32 in passes", nullptr, 28, 1, adamw_in_passes, kBest},
    {"AccumAdamW fp32, K = 4", "avx512", 112, 4, accum_adamw, kLimit},
    {"AccumAdamW fp32 in passes", nullptr, 112, 4, accum_in_passes, kBestAccum},
    {"mix, AdamW fp32, message", "avx512", 36, 1, adamw_mixed, kLimit36},
    {"the same, mix and message in passes", "avx512", 36, 1, mix_in_passes, kBestMixed},
    {"AdamW bf16 with fp32 master", "avx512", 28, 1, adamw_bf16, kLimit},
    {"AdamW bf16 with fp32 master", "avx2", 28, 1, adamw_bf16, kLimit},
    {"survey of fp32 gradients", "avx512", 4, 1, read_gradients, kLimit},
};

/// Seconds of one case, from the common start to the last thread's end.
class Team {
 public:
  Team(std::size_t threads, std::size_t elements, const std::vector<int>& cores)
      : start_(static_cast<std::ptrdiff_t>(threads) + 1),
        end_(static_cast<std::ptrdiff_t>(threads) + 1),
        lost_(threads) {
    for (std::size_t k = 0; k < threads; ++k)
      threads_.emplace_back([this, k, count = elements / threads, core = cores[k % cores.size()]] {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(static_cast<std::size_t>(core), &set);
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
        Part part(count);
        end_.arrive_and_wait();  // all memory touched
        while (true) {
          start_.arrive_and_wait();
          if (run_ == nullptr) return;
          const double cpu = measure::thread_cpu_seconds();
          const auto begin = Clock::now();
          run_(part);
          lost_[k] = seconds_since(begin) - (measure::thread_cpu_seconds() - cpu);
          end_.arrive_and_wait();
        }
      });
    end_.arrive_and_wait();
  }
  /// Repeats the sample up to three times while other programs take a core for over 3 % of the time; then the
  /// least disturbed one counts.
  double time(void (*run)(Part&)) {
    double best = 0, quietest = INFINITY;
    for (int attempt = 0; attempt < 4 && quietest > 0.03; ++attempt) {
      run_ = run;
      const auto begin = Clock::now();
      start_.arrive_and_wait();
      end_.arrive_and_wait();
      const double seconds = seconds_since(begin);
      const double lost = *std::max_element(lost_.begin(), lost_.end()) / seconds;
      if (lost < quietest) quietest = lost, best = seconds;
    }
    disturbed_ += quietest > 0.03;
    return best;
  }
  int disturbed() const { return disturbed_; }  ///< samples that were disturbed in every attempt
  ~Team() {
    run_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& t : threads_) t.join();
  }

 private:
  std::barrier<> start_, end_;
  std::vector<double> lost_;  // seconds that a thread was not running, of the last sample
  int disturbed_ = 0;
  void (*run_)(Part&) = nullptr;
  std::vector<std::thread> threads_;
};

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cores;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(static_cast<std::size_t>(c), &set)) cores.push_back(c);
  return cores;
}

bool select_isa(const char* isa) { return isa == nullptr || use_instruction_set(isa); }

/// Runs every case once in each round, in rotating order; ratios are within one round.
void from_memory(std::size_t threads, std::size_t elements, int rounds, const std::vector<int>& cores) {
  constexpr std::size_t n = std::size(kCases);
  Team team(threads, elements, cores);
  std::vector<std::vector<double>> rate(n), ratio(n);
  for (int round = -1; round < rounds; ++round) {  // the first is not counted
    std::vector<double> time(n);
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t at = round % 2 == 0 ? k : n - 1 - k;
      if (select_isa(kCases[at].isa)) time[at] = team.time(kCases[at].run);
    }
    const auto rate_of = [&](std::size_t k) {
      return kCases[k].bytes * static_cast<double>(elements / threads * threads) / time[k] / 1e9;
    };
    if (round < 0) continue;
    for (std::size_t k = 0; k < n; ++k) {
      if (time[k] == 0) continue;
      rate[k].push_back(rate_of(k));
      if (time[kCases[k].against] > 0) ratio[k].push_back(rate_of(k) / rate_of(kCases[k].against));
    }
  }
  std::printf(
      "\n# from memory, %zu thread%s, %.0f M parameters, median of %d interleaved rounds (%d of %zu samples"
      " disturbed)\n",
      threads, threads > 1 ? "s" : "", static_cast<double>(elements) / 1e6, rounds, team.disturbed(),
      static_cast<std::size_t>(rounds + 1) * n);
  std::printf("%-38s %-9s %6s %8s %10s   %s\n", "# case", "isa", "B/step", "GB/s", "Gparam/s", "of");
  for (std::size_t k = 0; k < n; ++k) {
    const Case& c = kCases[k];
    if (rate[k].empty()) continue;
    const double r = median(rate[k]);
    std::printf("%-38s %-9s %6.0f %8.1f %10.3f", c.name, c.isa ? c.isa : "-",
                static_cast<double>(c.bytes) / c.steps, r, r / c.bytes * c.steps);
    if (!ratio[k].empty() && c.against != k)
      std::printf("   %.1f %% of %s", 100 * median(ratio[k]), kCases[c.against].name);
    std::printf("\n");
  }
}

/// One thread, 224 KiB for AdamW: the speed of the arithmetic itself.
void from_cache(int rounds) {
  Part part(14 * 1024);
  std::printf("\n# from the second-level cache, one thread, %zu parameters\n", part.count);
  std::printf("%-38s %-9s %10s\n", "# case", "isa", "Gparam/s");
  for (const char* isa : {"avx512", "avx2", "baseline"})
    for (const Case& c : kCases) {
      if (c.isa == nullptr || std::string(c.isa) != "avx512" || !use_instruction_set(isa)) continue;
      std::vector<double> rates;
      for (int round = 0; round < rounds; ++round) {
        const int calls = 400;
        const double begin = measure::thread_cpu_seconds();
        for (int k = 0; k < calls; ++k) c.run(part);
        const double seconds = measure::thread_cpu_seconds() - begin;
        rates.push_back(calls * c.steps * static_cast<double>(part.count) / seconds / 1e9);
      }
      std::printf("%-38s %-9s %10.2f\n", c.name, isa, median(rates));
    }
}

}  // namespace
}  // namespace ouro::kernels

int main(int argc, char** argv) {
  using namespace ouro::kernels;
  const std::optional<int> rounds = ouro::bench::number(argc, argv, 1, 7, 1, 10'000);
  const std::optional<int> millions = ouro::bench::number(argc, argv, 2, 36, 1, 10'000);
  const bool right = rounds && millions && argc <= 3;
  if (const auto code =
          ouro::bench::help_or_refuse(argc, argv, right, "bench_optimiser [ROUNDS [MILLION_ELEMENTS]]"))
    return *code;
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fprintf(stderr, "bench_optimiser is built for processors with AVX2 and FMA\n");
    return 1;
  }
#endif
  const std::vector<int> cores = usable_cores();
  const auto mode = [&] {
    if (cores.size() > 1)
      std::printf("# hand-off between cores: %.0f ns\n", ouro::measure::handoff_ns(cores[0], cores[1]));
  };
  mode();
  const auto begin = Clock::now();
  const double others = ouro::measure::host_cpu_seconds() - ouro::measure::process_cpu_seconds();
  from_cache(*rounds);
  for (const std::size_t threads : {1, 2})
    if (threads <= cores.size())
      from_memory(threads, static_cast<std::size_t>(*millions) * 1'000'000, *rounds, cores);
  const double taken = ouro::measure::host_cpu_seconds() - ouro::measure::process_cpu_seconds() - others;
  std::printf("\n# other programs took %.0f %% of the processors\n",
              100 * taken / seconds_since(begin) / static_cast<double>(cores.size()));
  mode();
  return 0;
}
