// Calls of NVML, found at run time. See nvml.h.
#include "kernels/device/cuda/nvml.h"

#include <dlfcn.h>

#include <memory>
#include <utility>

namespace ouro::gpu {
namespace {

// Functions as nvml.h declares them; each returns 0 on success.
using Device = void*;
using Init = int (*)();
using Count = int (*)(unsigned*);
using ByIndex = int (*)(unsigned, Device*);
using UuidOf = int (*)(Device, char*, unsigned);
using P2pStatus = int (*)(Device, Device, int what, int* status);
constexpr int kRead = 0, kWrite = 1, kP2pOk = 0;
constexpr unsigned kMost = 256;

std::optional<unsigned> digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

std::optional<Uuid> parse_uuid(std::string_view text) {
  constexpr std::string_view kPrefix = "GPU-", kShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kShape.size()) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  Uuid uuid = {};
  std::size_t digits = 0;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] == '-') {
      if (text[i] != '-') return std::nullopt;
      continue;
    }
    const auto value = digit(text[i]);
    if (!value) return std::nullopt;
    unsigned char& byte = uuid[digits++ / 2];
    byte = static_cast<unsigned char>(byte << 4 | *value);
  }
  return uuid;
}

std::vector<Uuid> reachable_by_nvml(const Uuid& mine, const char* library) {
  const std::unique_ptr<void, int (*)(void*)> nvml(::dlopen(library, RTLD_NOW | RTLD_LOCAL), &::dlclose);
  if (!nvml) return {};
  const auto init = reinterpret_cast<Init>(::dlsym(nvml.get(), "nvmlInit_v2"));
  const auto shut = reinterpret_cast<Init>(::dlsym(nvml.get(), "nvmlShutdown"));
  const auto count = reinterpret_cast<Count>(::dlsym(nvml.get(), "nvmlDeviceGetCount_v2"));
  const auto by_index = reinterpret_cast<ByIndex>(::dlsym(nvml.get(), "nvmlDeviceGetHandleByIndex_v2"));
  const auto uuid_of = reinterpret_cast<UuidOf>(::dlsym(nvml.get(), "nvmlDeviceGetUUID"));
  const auto status = reinterpret_cast<P2pStatus>(::dlsym(nvml.get(), "nvmlDeviceGetP2PStatus"));
  if (!init || !shut || !count || !by_index || !uuid_of || !status || init() != 0) return {};
  Device self = nullptr;
  std::vector<std::pair<Device, Uuid>> others;
  unsigned many = 0;
  if (count(&many) != 0 || many > kMost) many = 0;
  for (unsigned i = 0; i < many; ++i) {
    Device device = nullptr;
    char text[96] = {};
    if (by_index(i, &device) != 0 || uuid_of(device, text, sizeof text - 1) != 0) continue;
    const auto uuid = parse_uuid(text);
    if (uuid && *uuid == mine)
      self = device;
    else if (uuid)
      others.emplace_back(device, *uuid);
  }
  std::vector<Uuid> reached;
  for (const auto& [device, uuid] : others) {
    int read = -1, write = -1;
    if (self && status(self, device, kRead, &read) == 0 && read == kP2pOk &&
        status(self, device, kWrite, &write) == 0 && write == kP2pOk)
      reached.push_back(uuid);
  }
  (void)shut();
  return reached;
}

}  // namespace ouro::gpu
