// Enabling access between devices. See peer_access.h.
#include "runtime/device_memory/peer_access.h"

#include <mutex>
#include <set>
#include <tuple>

#include "kernels/device/gpu.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

struct EnabledPairs {
  std::mutex mutex;
  std::set<std::tuple<const gpu::Gpu*, int, int>> pairs;  // by implementation, because tests install others
};
constinit PerProcess<EnabledPairs> g_enabled;

}  // namespace

void enable_peer_access(const JobMembers& members) {
  std::set<int> devices;
  for (int r = 0; r < members.size(); ++r)
    if (const GpuRecord& g = members.page(r).gpu; members.is_thread(r) && g.present) devices.insert(g.device);
  std::lock_guard lock(g_enabled->mutex);  // a rank waits while another enables the same pairs
  for (const int device : devices)
    for (const int peer : devices) {
      if (device == peer || !gpu::gpu().peer_access(device, peer) ||
          !g_enabled->pairs.insert({&gpu::gpu(), device, peer}).second)
        continue;
      if (const Status s = gpu::gpu().enable_peer(device, peer); !s.ok()) {
        g_enabled->pairs.erase({&gpu::gpu(), device, peer});
        OURO_WARN("GPU {} cannot access memory of GPU {}: {}", device, peer, s.message());
      }
    }
}

}  // namespace ouro::rt
