// The pairs of fake devices that reach each other. Used by the parts of a FakeGpu that touch memory.
#pragma once
#include <fmt/format.h>

#include <mutex>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "kernels/device/fake/fake_memory.h"

namespace ouro::gpu::fake {

/// Knows which devices can map each other's memory, and which have been allowed to.
class Peers {
 public:
  explicit Peers(const FakeOptions& o)
      : options_(o), enabled_(static_cast<std::size_t>(o.devices * o.devices)) {}

  bool reaches(int device, int peer) const { return maps(device, options_.first + peer); }
  /// The same for a device of the host, seen here or not.
  bool maps(int device, int number) const {
    const int mine = options_.first + device;
    return mine == number || !options_.peer || options_.peer(mine, number);
  }
  bool enabled(int device, int peer) {
    std::lock_guard lock(mutex_);
    return device == peer || enabled_[index(device, peer)];
  }
  Status enable(int device, int peer) {
    if (!reaches(device, peer))
      return unsupported(fmt::format("device {} cannot map memory of device {}", device, peer));
    std::lock_guard lock(mutex_);
    enabled_[index(device, peer)] = true;
    return {};
  }
  /// Whether `device` may touch this memory.
  Status check_access(int device, const Block& b) {
    if (b.device < 0 || b.device == device) return {};
    if ((b.origin == Origin::region || b.open) && reaches(device, b.device)) return {};
    if (b.origin == Origin::chunk)
      return invalid(fmt::format("device {} has no access to a chunk of device {}: see open_to_peers", device,
                                 b.device));
    std::lock_guard lock(mutex_);
    if (enabled_[index(device, b.device)]) return {};
    return invalid(
        fmt::format("device {} has no access to memory of device {}: see enable_peer", device, b.device));
  }

 private:
  std::size_t index(int device, int peer) const {
    return static_cast<std::size_t>(device * options_.devices + peer);
  }
  const FakeOptions& options_;
  std::mutex mutex_;
  std::vector<bool> enabled_;
};

}  // namespace ouro::gpu::fake
