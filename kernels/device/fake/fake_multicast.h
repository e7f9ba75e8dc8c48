// Multicast objects of fake GPUs: their members, the memory that is bound, and its addresses in this process.
// Used by fake_gpu.cc.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "kernels/device/fake/fake_control.h"
#include "kernels/device/fake/fake_memory.h"

namespace ouro::gpu::fake {

/// The calls of a FakeGpu that concern multicast objects. The state of an object is in a segment that all
/// processes map; the others open a member's bound memory by its descriptor.
class Multicasts {
 public:
  static constexpr std::size_t kGranularity = 128 << 10;  ///< more than that of regions, as CUDA permits
  static constexpr int kMaxDevices = 64;

  Multicasts(const FakeOptions& options, Control& control, const Memory& memory)
      : options_(options), control_(control), memory_(memory) {}

  Result<Multicast> create(int device, int devices, std::size_t bytes);
  Result<Fd> export_fd(const Multicast&);
  Result<Multicast> import_fd(int device, const Fd&, std::size_t bytes);
  Status join(const Multicast&);
  Status bind(Multicast*, const Region&);
  Status free(const Multicast&);
  int members(const void* address, std::byte** members);
  int count();

 private:
  struct Shared;
  struct Object;
  Status admit(FakeOp, const char* step, int device);
  Result<std::shared_ptr<Object>> find(const Multicast&);
  Result<Multicast> add(std::shared_ptr<Object>);

  const FakeOptions& options_;
  Control& control_;
  const Memory& memory_;
  std::shared_mutex mutex_;  // guards all members below, and the members of Objects that this process changes
  std::map<std::uint64_t, std::shared_ptr<Object>> objects_;
  std::map<std::uintptr_t, std::shared_ptr<Object>> mapped_;  // by the address of the multicast
  std::uint64_t next_ = 1;
};

}  // namespace ouro::gpu::fake
