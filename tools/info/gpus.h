// GPUs as the runtime itself sees them: properties, the memory that each device can map, the number of blocks
// of each kernel that fit. Used by ouro-info.
#pragma once
#include <string>
#include <vector>

#include "kernels/device/gpu.h"

namespace ouro::info {

/// For a kernel whose blocks wait for each other: only as many blocks may run as can be resident at once.
struct Residency {
  std::string kernel;
  gpu::KernelInfo info;
  int threads = 0;
  int blocks = 0;   ///< on the whole device
  std::string why;  ///< why the number is not known; "" if it is
};

struct GpuDevice {
  gpu::Properties properties;
  std::string why;            ///< why nothing is known about the device; "" if there was no error
  std::vector<bool> reaches;  ///< by device: whether this one can map its memory, itself included
  std::vector<Residency> kernels;
};

struct Gpus {
  std::string by;       ///< "cuda", "fake" or "none"
  std::string version;  ///< of driver and runtime; if there is no GPU, what is missing
  std::vector<GpuDevice> devices;
};

/// Queries every device. Creates a context on each, which takes a moment and keeps some of its memory until
/// the process ends.
Gpus read_gpus(gpu::Gpu&);

/// "9.0"; nvcc calls this sm_90.
std::string capability(const gpu::Properties&);
/// "GPU-0f1e2d3c-...", as the driver's own tools write it.
std::string uuid_text(const gpu::Properties&);

}  // namespace ouro::info
