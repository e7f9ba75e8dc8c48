// The report of OURO_GPU_TRACE. See gpu_trace.h.
#include "kernels/device/gpu_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>

#include "runtime/core/env.h"
#include "runtime/core/log.h"

namespace ouro::gpu {
namespace {

double us(std::uint64_t ns) { return static_cast<double>(ns) / 1000; }

/// Set once, before the handler below is registered.
std::atomic<const CountingGpu*> g_traced{nullptr};

void log_at_exit() {
  const CountingGpu* const traced = g_traced.load(std::memory_order_acquire);
  for (const std::string& line : trace_lines(*traced)) log::write(log::Level::info, line);
}

}  // namespace

std::vector<std::string> trace_lines(const CountingGpu& gpu) {
  std::vector<std::string> lines;
  for (const auto& [threads, r] : gpu.by_class()) {
    std::array<std::size_t, kGpuCalls> by_time;
    std::iota(by_time.begin(), by_time.end(), 0);
    std::ranges::stable_sort(by_time, [&](auto a, auto b) { return r.total_ns[a] > r.total_ns[b]; });
    for (const std::size_t i : by_time)
      if (r.counts.calls[i] != 0)
        lines.push_back(fmt::format("GPU {:15} {:18} {:10} calls {:12.1f} us, longest {:9.1f} us", threads,
                                    kCallTerms[i].name, r.counts.calls[i], us(r.total_ns[i]),
                                    us(r.max_ns[i])));
    lines.push_back(fmt::format(
        "GPU {:15} pieces of work {}, queries {}, other calls {}, setup {}; at least {} calls of the driver, "
        "{} if no context was current",
        threads, r.counts.pieces(), r.counts.queries(), r.counts.of(CallClass::other),
        r.counts.of(CallClass::setup), r.counts.driver, r.counts.driver_calls()));
  }
  return lines;
}

Gpu* traced_if_set(Gpu* of) {
  const auto set = env::flag("OURO_GPU_TRACE");
  if (!set.ok()) OURO_WARN("{}", set.status().message());
  if (!set.ok() || !set->value_or(false)) return of;
  auto* const traced = new CountingGpu(*of, CountingGpu::Times::on);  // never destroyed, as `of`
  const CountingGpu* none = nullptr;
  if (g_traced.compare_exchange_strong(none, traced, std::memory_order_acq_rel))
    (void)std::atexit(log_at_exit);
  return traced;
}

}  // namespace ouro::gpu
