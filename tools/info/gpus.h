// GPUs as the runtime itself sees them: properties, who reaches whom, how many blocks of which kernel fit.
// Used by ouro-info.
#pragma once
#include <string>
#include <vector>

#include "kernels/device/gpu.h"

namespace ouro::info {

/// A kernel whose blocks wait for each other: only as many as can be resident at once may run.
struct Residency {
  std::string kernel;
  gpu::KernelInfo info;
  int threads = 0;
  int blocks = 0;   ///< on the whole device
  std::string why;  ///< why it is not known; "" if it is
};

struct GpuDevice {
  gpu::Properties properties;
  std::string why;            ///< why nothing is known of it; "" if all is well
  std::vector<bool> reaches;  ///< which device's memory it can map, itself included
  std::vector<Residency> kernels;
};

struct Gpus {
  std::string by;       ///< "cuda", "fake" or "none"
  std::string version;  ///< of driver and runtime; what is missing, if there is nothing
  std::vector<GpuDevice> devices;
};

/// Asks every device; makes a context on each, which takes a moment and some of its memory until the end of
/// the process.
Gpus read_gpus(gpu::Gpu&);

/// "9.0"; the number in sm_90.
std::string capability(const gpu::Properties&);
/// "GPU-0f1e2d3c-...", as the driver's own tools write it.
std::string uuid_text(const gpu::Properties&);

}  // namespace ouro::info
