// The GPUs of this machine as reported by the management library (NVML), including those that this process
// does not see, for example if each process is given one. Used by cuda.cc; needs neither CUDA nor
// its headers.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// "GPU-8f6a1b2c-0d1e-2f30-4152-637485960718"; nullopt for anything else, such as a part of a GPU (MIG).
std::optional<Uuid> parse_uuid(std::string_view);
/// The other GPUs that one can read and write, as NVML reports; none if there is no NVML, or it does not
/// know. `library`: its file; only tests use another than that of the driver.
std::vector<Uuid> reachable_by_nvml(const Uuid& mine, const char* library = "libnvidia-ml.so.1");

}  // namespace ouro::gpu
