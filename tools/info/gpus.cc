// Queries the GPU interface. Used through gpus.h.
#include "tools/info/gpus.h"

#include <fmt/format.h>

#include "kernels/gpu/collect.h"

namespace ouro::info {
namespace {

constexpr int kThreads = 512;  // block size of the resident kernels on the devices that they are written for

Residency residency(gpu::Gpu& g, const gpu::Kernel& kernel, int device) {
  Residency r{.kernel = kernel.name};
  const Result<gpu::KernelInfo> info = g.info(kernel, device);
  if (!info) {
    r.why = info.status().failure()->text;
    return r;
  }
  r.info = *info;
  r.threads = info->max_threads > 0 && info->max_threads < kThreads ? info->max_threads : kThreads;
  const Result<int> blocks = g.resident_blocks(kernel, r.threads, device);
  if (blocks)
    r.blocks = *blocks;
  else
    r.why = blocks.status().failure()->text;
  return r;
}

}  // namespace

Gpus read_gpus(gpu::Gpu& g) {
  Gpus all{.by = g.name(), .version = g.version(), .devices = {}};
  const int n = g.devices();
  for (int i = 0; i < n; ++i) {
    GpuDevice d;
    if (Result<gpu::Properties> p = g.properties(i); p)
      d.properties = std::move(*p);
    else
      d.why = p.status().failure()->text;
    for (int peer = 0; peer < n; ++peer) d.reaches.push_back(peer == i || g.peer_access(i, peer));
    if (d.why.empty())
      for (const gpu::Kernel* kernel : gpu::all_kernels())
        if (kernel->spins) d.kernels.push_back(residency(g, *kernel, i));
    all.devices.push_back(std::move(d));
  }
  return all;
}

std::string capability(const gpu::Properties& p) { return fmt::format("{}.{}", p.major, p.minor); }

std::string uuid_text(const gpu::Properties& p) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < p.uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", p.uuid[i]);
  return text;
}

}  // namespace ouro::info
