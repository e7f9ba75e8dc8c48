// OURO_GPU_TRACE: what this process's calls of Gpu cost. Used by gpu(), and by the test of the report.
#pragma once
#include <string>
#include <vector>

#include "kernels/device/counting_gpu.h"

namespace ouro::gpu {

/// One line for each class of threads and kind of call: calls, total and longest time in microseconds, the
/// dearest first; and a line of sums for each class.
std::vector<std::string> trace_lines(const CountingGpu&);

/// Returns a CountingGpu over `of` that measures times, or `of` itself unless OURO_GPU_TRACE is set. The
/// process logs its lines when it ends by exit() or by returning from main(); a forked child logs its own.
Gpu* traced_if_set(Gpu* of);

}  // namespace ouro::gpu
